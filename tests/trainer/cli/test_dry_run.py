"""The dry run's text: its sections, and the memory of a run on the CPU, on a GPU, and on one that is not named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlcheck.measure.memory.predict import Gpu
from rlcheck.text import size_label as size
from rltrain.cli.dry_run import config_yaml, memory_lines, report, step_lines
from rltrain.cli.forecast import forecast_lines
from rltrain.cluster.placement import nodes_as_asked, plan
from rltrain.config import Machine, load, resolve
from rltrain.config.as_facts import facts_of
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from tests.trainer.config import SMALL

CPU, GPU = Machine("cpu", 0, 2), Machine("cuda", 2, 8)
HOST, LARGE = Gpu("CPU", 64 << 30), Gpu("H200", 150_754_820_096)
LLAMA = {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101,
         "intermediate_size": 96}  # fmt: skip


def resolved(*overrides: str, machine: Machine = CPU) -> RunConfig:
    return resolve(load(SMALL, overrides), machine)


def memory(*overrides: str, device: Gpu | None, machine: Machine = CPU) -> list[str]:
    return memory_lines(facts_of(resolved(*overrides, machine=machine)), device)


def row(lines: list[str], role: str) -> str:
    return next(line for line in lines if line.startswith(role))


def test_who_is_idle_when() -> None:
    apart, off = "actor_rollout_ref.hybrid_engine=false", "algorithm.max_staleness=1"
    assert step_lines(resolved())[-1] == "idle: neither; ranks and engines take turns on the same devices"
    lines = step_lines(resolved(apart))
    assert lines[1].split() == ["ranks", "wait", "learn", "from", "step", "k"]
    assert lines[2].split() == ["engines", "generate", "step", "k", "wait"]
    assert "each side while the other works" in lines[3]
    lines = step_lines(resolved(apart, off))
    assert "generate step k+1" in lines[2]
    assert "idle: whichever side is done first" in lines[3]
    lines = step_lines(resolved(apart, "algorithm.max_staleness=4"))
    assert "generate for up to 5 steps at once" in lines[2]
    assert "a group that is 4 steps old is unfinished" in lines[3]


def test_states_are_sharded_over_the_ranks_and_typed() -> None:
    def states(*overrides: str) -> tuple[int, str]:
        lines = memory(*overrides, device=HOST)
        return int(lines[0].split()[0].replace(",", "")), row(lines, "actor")

    count, one = states("trainer.num_cpu_ranks=1")
    assert (
        one.split() == f"actor {size(4 * count)} {size(4 * count)} {size(8 * count)} {size(16 * count)} device".split()
    )
    assert size(2 * count) in states("trainer.num_cpu_ranks=2")[1]
    half = "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"
    assert size(2 * count) in states("trainer.num_cpu_ranks=1", half)[1]


def test_roles_and_where_they_are() -> None:
    offload = "fsdp_config.optimizer_offload=true"
    lines = memory(
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.ref.fsdp_config.param_offload=true",
        f"actor_rollout_ref.actor.{offload}",
        f"actor_rollout_ref.ref.{offload}",
        device=HOST,
    )
    assert row(lines, "actor").endswith("device; optimizer on the host while idle")
    assert row(lines, "ref").endswith("device; weights on the host while idle")
    assert not any(line.startswith("critic") for line in lines)


def test_a_run_on_the_cpu_says_what_the_node_needs() -> None:
    last = memory(device=HOST)[-1]
    assert last.startswith("RAM of a node in actor update: about 1.")
    assert "of 64.0 GiB (processes " in last


def test_a_run_on_a_gpu_shows_every_phase() -> None:
    lines = memory(machine=GPU, device=LARGE)
    text = "\n".join(lines)
    for words in ("peak", "actor update", "critic update", "rollout", "allocator slack", "at most", "are left"):
        assert words in text
    assert max(map(len, lines)) <= 100
    assert any("rollout: 44." in line for line in lines), "0.3 of the GPU, and contexts"


def test_a_gpu_that_is_not_known_is_asked_for() -> None:
    lines = memory(machine=GPU, device=None)
    assert row(lines, "critic").endswith("device")
    assert lines[-1] == "every phase and its limits: name the GPU by --gpu H200 or --gpu 80GiB"


def test_the_config_in_force_loads_again(tmp_path: Path) -> None:
    config = resolved()
    file = tmp_path / "resolved.yaml"
    file.write_text(config_yaml(config))
    assert load(file) == config


def test_the_report_has_all_its_parts() -> None:
    config = resolved("critic.ppo_mini_batch_size=16")
    lines = report(config, ["role   node", "actor  here"], HOST)
    assert [line for line in lines if line.startswith("==")] == [
        "== Config ==",
        "== Placement ==",
        "== Steps ==",
        "== Batches ==",
        "== Memory ==",
    ]
    first, last = lines.index("== Config =="), lines.index("== Placement ==")
    assert yaml.safe_load("\n".join(lines[first + 1 : last]))["data"]["train_batch_size"] == 64
    assert lines[last + 1 : last + 3] == ["role   node", "actor  here"]
    assert sum(line.startswith("mini batch") for line in lines) == 2


def test_the_sizes_come_from_the_models_own_file(tmp_path: Path) -> None:
    model = f"actor_rollout_ref.model.path={tmp_path}"
    assert memory(model, device=HOST) == [f"unknown: {tmp_path} holds no config.json that can be read"]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    lines = memory(model, "actor_rollout_ref.model.override_config={vocab_size: 7}", device=HOST)
    assert "vocabulary 7" in lines[0]
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": 0}))
    with pytest.raises(UserError, match=r"config.json: hidden_size: expected an integer > 0, got 0"):
        memory(model, device=HOST)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "olmo2"}))
    assert memory(model, device=HOST)[0].startswith("about ")


def forecast_of(place: Path, config: RunConfig) -> str:
    """What is said of a run whose records are of one device; the model and the batch are CONFIG's."""
    speed = {"timing_s/step": 11.0, "timing_s/gen": 10.0, "timing_s/update_weights": 0.1}
    answers = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    lengths = [100.0] * 20 + [1000.0]
    note = {"requests": answers, "prompt_tokens": 0, "tokens": answers * 122, "lengths": lengths, "most": answers,
            "paces": [[1, 1000, 8.0], [answers, 1000, 10.0]]}  # fmt: skip
    theirs = config.model_dump(mode="json")
    theirs["algorithm"]["max_staleness"] = 0
    (place / "run.json").write_text(json.dumps({"config": theirs}))
    (place / "metrics.jsonl").write_text(json.dumps({"step": 1, "perf/total_num_tokens": answers * 122, **speed}))
    (place / "clock.jsonl").write_text(json.dumps({"step": 1, "rounds": [note]}))
    return "\n".join(forecast_lines(config, plan(config, nodes_as_asked(config, 8)), str(place)))


def test_asynchrony_is_predicted_from_an_earlier_run(tmp_path: Path) -> None:
    apart = ("actor_rollout_ref.hybrid_engine=false", "actor_rollout_ref.rollout.n_gpus_per_node=1")
    values = (*apart, "trainer.n_gpus_per_node=1", "data.train_batch_size=64", "actor_rollout_ref.rollout.n=8",
              "algorithm.max_staleness=3")  # fmt: skip
    said = forecast_of(tmp_path, resolved(*values, machine=GPU))
    assert "from 1 steps" in said
    gains = {line.split()[3]: line.split()[6] for line in said.splitlines() if line.startswith("1 + 1")}
    assert list(gains) == ["1", "2", "3", "4"], said
    assert "algorithm.max_staleness=" in said.splitlines()[-1]
    assert "gains most" in said


def test_asynchrony_that_loses_is_said_to(tmp_path: Path) -> None:
    """Two GPUs that take turns, where training takes nearly all of the time: apart, half of them would rest."""
    config = resolved("trainer.n_gpus_per_node=2", machine=GPU)
    said = forecast_of(tmp_path, config)
    steps = json.loads((tmp_path / "metrics.jsonl").read_text()) | {"timing_s/step": 1000.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(steps))
    lines = forecast_lines(config, plan(config, nodes_as_asked(config, 8)), str(tmp_path))
    assert "asynchrony loses" not in said
    assert "asynchrony loses here" in "\n".join(lines)


def test_without_records_nothing_is_predicted(tmp_path: Path) -> None:
    config = resolved(f"trainer.default_local_dir={tmp_path}")
    placed = plan(config, nodes_as_asked(config, 8))
    assert forecast_lines(config, placed, "")[0].startswith("unknown: it is predicted from")
    (tmp_path / "clock.jsonl").touch()
    assert forecast_lines(config, placed, "")[0].startswith(f"unknown: {tmp_path / 'run.json'} is missing")
    with pytest.raises(UserError, match="is missing"):
        forecast_lines(config, placed, str(tmp_path))
