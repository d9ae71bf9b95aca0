"""What a config leaves open and sources settle: whole sequences, tensor parallel logits, distributions by release."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from rlcheck.facts.config import DataSpec, ModelUse, RoleSpec, RolloutSpec, RunSpec, Sharding
from rlcheck.measure.config.fields import actual
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.roles import pass_of, role_memory
from rlcheck.measure.memory.shapes import shape_of
from rlcheck.measure.memory.transient import Pass, inference
from rlcheck.measure.memory.unsaid import bounded
from tests.measure.config.test_trainers import ALL, written
from tests.measure.memory.samples import QWEN

SHAPE = shape_of(QWEN)
LENGTHS = ("data.max_prompt_length", "data.max_response_length")


def test_responses_that_may_fill_the_engine_are_counted_with_their_prompts(tmp_path: Path) -> None:
    written(ALL["nemo-rl"], tmp_path)
    text = (tmp_path / "base.yaml").read_text()
    (tmp_path / "whole.yaml").write_text(text.replace("max_new_tokens: 512", "max_new_tokens: 1024"))
    for name, lengths in (("base.yaml", (512, 512)), ("whole.yaml", (1, 1023))):
        run = bounded(read_run(str(tmp_path / name), [], look=False))
        assert tuple(actual(run, field) for field in LENGTHS) == lengths
        assert any("counted with 1024 tokens together" in note for note in run.fallbacks) is (name == "whole.yaml")


def test_what_openrlhf_leaves_of_its_longest_sample(tmp_path: Path) -> None:
    written(ALL["openrlhf"], tmp_path)
    text = (tmp_path / "run.sh").read_text()
    (tmp_path / "whole.sh").write_text(text.replace("--rollout.max_new_tokens=1024", ""))
    for name, lengths in (("run.sh", (1024, 1024)), ("whole.sh", (1, 2047))):
        run = bounded(read_run(str(tmp_path / name), [], look=False))
        assert tuple(actual(run, field) for field in LENGTHS) == lengths


def test_prime_rl_cuts_samples_to_its_own_length(tmp_path: Path) -> None:
    written(ALL["prime-rl"], tmp_path)
    run = read_run(str(tmp_path / "rl.toml"), [], look=False)
    assert actual(run, "rollout.max_model_len") == 4096
    assert actual(bounded(run), "data.max_prompt_length") == 4096 - 1024
    (tmp_path / "open.toml").write_text('[trainer.model]\nname = "Org/Some-1B"\n[orchestrator.model]\nname = "Org/A"\n')
    whole = bounded(read_run(str(tmp_path / "open.toml"), [], look=False))
    assert [actual(whole, field) for field in LENGTHS] == [1, 2047]


def test_a_config_of_an_older_nemo_rl_has_its_engines_beside_training(tmp_path: Path) -> None:
    written(ALL["nemo-rl"], tmp_path)
    tree = yaml.safe_load((tmp_path / "base.yaml").read_text())
    policy = tree["policy"]
    del policy["generation"]["colocated"], policy["generation"]["vllm_cfg"]["expert_parallel_size"]
    del policy["dtensor_cfg"]["context_parallel_size"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(tree))
    run = read_run(str(tmp_path / "old.yaml"), [], look=False)
    assert actual(run, "colocated") is True
    assert "colocated" not in run.without
    assert actual(run, "rollout.expert_parallel") == actual(run, "actor.sharding.context_parallel") == 1
    (tmp_path / "none.yaml").write_text("grpo: {num_prompts_per_step: 8}\npolicy: {model_name: Org/Some-1B}\n")
    none = read_run(str(tmp_path / "none.yaml"), [], look=False)
    assert {"colocated", "rollout.expert_parallel", "actor.sharding.context_parallel"} <= none.without.keys()


def passed(tensor: int = 1, *, inference: bool = True, **role: float) -> Pass:
    actor = RoleSpec(name="actor", model=ModelUse(), micro_batch_size=1, infer_micro_batch_size=1,
                     sharding=Sharding(strategy="fsdp2", tensor_parallel=tensor))  # fmt: skip
    actor = msgspec.structs.replace(actor, **role)
    run = RunSpec(actor=actor, data=DataSpec(max_prompt_length=512, max_response_length=512), rollout=RolloutSpec())
    return pass_of(run, role_memory(actor, SHAPE, 8), inference, "nemo-rl")


def test_tensor_parallel_gpus_divide_logits_and_what_is_gathered() -> None:
    one, two = passed(), passed(2)
    assert (one.logit_tokens, two.logit_tokens) == (1024, 512)
    assert two.gathered_bytes == one.gathered_bytes // 2
    assert two.root_bytes == one.root_bytes // 2


def test_all_layers_are_there_where_a_trainer_gathers_them_to_read() -> None:
    held = [sum(one.num_bytes for one in inference(passed(unshards_to_read=whole)) if one.kind == "unsharded")
            for whole in (False, True)]  # fmt: skip
    assert held[1] - held[0] == SHAPE.layers * SHAPE.layer_parameters * 2
    assert not passed(inference=False, unshards_to_read=True).unshards


def test_a_trainers_own_distribution_counts_where_logits_are_whole() -> None:
    assert (passed(read_bytes=4.0).unfused, passed(inference=False, loss_bytes=8.0).unfused) == (4.0, 8.0)
    assert passed().unfused == passed(inference=False).unfused == 12.0
    assert passed(chunked_logits=True, read_bytes=4.0).unfused == 12.0


@pytest.mark.parametrize(
    ("options", "release", "each"),
    [
        ("--actor.adam.lr 1e-6", "", (4.0, 8.0)),
        ("--actor.entropy_coef 0.01", "", (4.0, 16.0)),
        ("--actor_learning_rate 1e-6", "@0.6.1", (4.0, 12.0)),
        ("--actor_learning_rate 1e-6", "@0.5.0", (6.0, 12.0)),
    ],
)
def test_openrlhf_makes_its_distribution_by_release(options: str, release: str, each: tuple[float, float]) -> None:
    line = f"python3 -m openrlhf.cli.train_ppo_ray {options} --rollout_batch_size 8"
    actor = read_run(line, [], framework=f"openrlhf{release}", look=False).spec.actor
    assert (actor.read_bytes, actor.loss_bytes) == each
