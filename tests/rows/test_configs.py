"""What users hit that is in the config already: `rlcheck config` and `rlcheck memory-profile` say it before the run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Done, rlcheck
from tests.rows.machines import says, says_of

SIZES = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "vocab_size": 32000,
         "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
         "max_position_embeddings": 4096}  # fmt: skip
LINE = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae trainer.logger=console trainer.n_gpus_per_node=8 "
    "data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=1024 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1 critic.ppo_micro_batch_size_per_gpu=4"
)
MODEL, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory: its sizes, and the names of its layers in a file of weights without the weights."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    header = json.dumps({f"model.layers.0.self_attn.{name}.weight": {"shape": [8, 8]} for name in ("q_proj", "v_proj")})
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    return tmp_path


def asked(command: str, model: Path, *overrides: str, options: tuple[str, ...] = ()) -> Done:
    """What COMMAND says of the run with OVERRIDES."""
    line = " ".join((LINE, f"{MODEL}.path={model} critic.model.path={model}", *overrides))
    return rlcheck(command, "-", *options, stdin=line.encode())


@pytest.mark.row("F13")
def test_a_share_of_the_gpu_is_of_all_its_memory(model: Path) -> None:
    """What other processes and the training ranks hold counts against `gpu_memory_utilization`, too."""
    large = (f"{ROLLOUT}.gpu_memory_utilization=0.95", f"{ROLLOUT}.free_cache_engine=False")
    full = asked("memory-profile", model, *large, options=("--gpu", "a100-80gb"))
    says_of(full, "MEM006", f"{ROLLOUT}.gpu_memory_utilization=", code=1)
    small = asked("memory-profile", model, f"{ROLLOUT}.gpu_memory_utilization=0.15", options=("--gpu", "a100-80gb"))
    says_of(small, "✗ MEM004", code=1)


@pytest.mark.row("F24")
def test_fewer_sequences_than_an_engine_gets(model: Path) -> None:
    """The scheduling limit is that of the KV cache's memory: the host's has nothing to do with it."""
    few = (f"{ROLLOUT}.gpu_memory_utilization=0.24", "data.max_response_length=3072")
    done = asked("memory-profile", model, *few, options=("--gpu", "a100-80gb"))
    says_of(done, "MEM005", "room for 2, and one engine gets 32 in a step", f"{ROLLOUT}.gpu_memory_utilization=")


def memory_checks(model: Path, *overrides: str, gpu: str) -> dict[str, Any]:
    """The findings on memory by ID, of the run with OVERRIDES."""
    done = asked("memory-profile", model, *overrides, options=("--gpu", gpu, "--format", "json"))
    return {finding["id"]: finding for finding in json.loads(done.out)["checks"]}


@pytest.mark.row("F13", "F24")
@pytest.mark.parametrize(
    ("check", "gpu", "given", "sets"),
    [
        ("MEM004", "a100-80gb", ("gpu_memory_utilization=0.15",), "gpu_memory_utilization"),
        ("MEM004", "l4", ("gpu_memory_utilization=0.5",), "tensor_model_parallel_size"),
        ("MEM004", "a100-80gb", ("gpu_memory_utilization=0.24", "max_model_len=131072"), "max_model_len"),
        ("MEM005", "a100-80gb", ("gpu_memory_utilization=0.24",), "gpu_memory_utilization"),
    ],
)
def test_what_is_typed_for_the_cache_makes_the_run_fit(
    model: Path, check: str, gpu: str, given: tuple[str, ...], sets: str
) -> None:
    """The number is worked out for this run: with a constant one training would not find its memory."""
    offload = [f"{role}.fsdp_config.{what}_offload=True" for role in (ACTOR, "critic.model")
               for what in ("param", "optimizer")]  # fmt: skip
    long = ("data.max_response_length=3072", *[f"{ROLLOUT}.{one}" for one in given], *(offload if gpu == "l4" else ()))
    long += ("critic.ppo_micro_batch_size_per_gpu=1", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1")
    before = memory_checks(model, *long, gpu=gpu)
    assert before[check]["status"] in ("fail", "warn")
    said, _, typed = before[check]["fixes"][0]["title"].partition(": ")
    assert said == "Add to the command"
    assert f"{ROLLOUT}.{sets}=" in typed
    after = memory_checks(model, *long, *typed.split(), gpu=gpu)
    assert [id for id in ("MEM001", "MEM004", "MEM005", "MEM006") if after[id]["status"] != "pass"] == []


@pytest.mark.row("F10")
def test_every_owner_of_the_memory_by_phase(model: Path) -> None:
    """13 GiB of weights fill a card of 40 GiB: gradients, the optimizer, activations and logits do."""
    done = asked("memory-profile", model, "trainer.n_gpus_per_node=2", options=("--gpu", "a100-40gb"))
    says_of(done, "✗ MEM001", "optimizer of actor", "actor update", "micro batch", code=1)
    says(done, "weights of critic")


@pytest.mark.row("F11")
def test_the_largest_micro_batch_is_computed(model: Path) -> None:
    """Not by a rule of thumb: the one that is named fits this model and GPU, and one more does not."""
    long = (
        "data.max_response_length=3072",
        f"{ACTOR}.ppo_mini_batch_size=256",
        "critic.ppo_micro_batch_size_per_gpu=1",
    )

    def predicted(size: int) -> dict[str, Any]:
        micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu={size}"
        done = asked("memory-profile", model, *long, micro, options=("--gpu", "a100-80gb", "--format", "json"))
        return json.loads(done.out)["data"]["memory"]

    most = predicted(1)["limits"]["micro_batch_size"]
    assert 1 < most < 32
    assert [predicted(size)["fits"] for size in (most, most + 1)] == [True, False]


@pytest.mark.row("F14")
def test_offload_that_the_host_does_not_hold(model: Path) -> None:
    offload = [f"{role}.fsdp_config.{what}_offload=True" for role in (ACTOR, "critic.model")
               for what in ("param", "optimizer")]  # fmt: skip
    done = asked("memory-profile", model, *offload, options=("--gpu", "a100-80gb", "--host-mem", "128GiB"))
    says_of(done, "✗ MEM003", "128 GiB", "240 GiB in load over 8 local ranks", code=1)


@pytest.mark.row("F14")
def test_roles_on_two_kinds_of_fsdp(model: Path) -> None:
    says_of(asked("config", model, f"{ACTOR}.strategy=fsdp2"), "CFG017", "critic.strategy=fsdp2")


@pytest.mark.row("F21")
def test_a_server_of_another_machine_on_loopback(model: Path) -> None:
    url = "reward.sandbox_fusion.url=http://127.0.0.1:8080/run"
    done = asked("config", model, url, "trainer.nnodes=2")
    says_of(done, "CFG021", "http://127.0.0.1:8080/run, which on each node is that node itself")
    assert "CFG021" not in asked("config", model, url).out, "on one node it is right"


@pytest.mark.row("F31")
def test_paths_that_only_a_shell_or_windows_reads(model: Path) -> None:
    done = asked("config", model, "data.train_files=~/gsm8k/train.parquet", "data.val_files='data\\val.parquet'")
    says_of(done, "✗ CFG065", "~/gsm8k/train.parquet (", "/gsm8k/train.parquet): there is no such file",
         f"{ROOT}/data\\val.parquet", "`\\` separates nothing here", "it is relative to", code=1)  # fmt: skip


@pytest.mark.row("F40")
def test_learning_rates_and_clips(model: Path) -> None:
    wild = ("actor_rollout_ref.actor.optim.lr=0.01", f"{ACTOR}.optim.clip_grad=10000", "critic.cliprange_value=0")
    done = asked("config", model, *wild)
    says_of(done, "CFG048", f"{ACTOR}.optim.lr=")
    says_of(done, "CFG054", "which never acts")
    says_of(done, "CFG055", "critic.cliprange_value")
    usual = asked("config", model, "actor_rollout_ref.actor.optim.lr=1e-6", "critic.optim.lr=1e-5").out
    assert not [id for id in ("CFG048", "CFG049", "CFG054", "CFG055") if id in usual], "verl's defaults are sound"


@pytest.mark.row("F43")
def test_lora_on_modules_of_another_family(model: Path) -> None:
    lora = (f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=16", f"{ACTOR}.optim.lr=3e-5")
    done = asked("config", model, *lora, f"{MODEL}.target_modules=[query_key_value]")
    says_of(done, "✗ CFG044", "query_key_value", "q_proj", f"{MODEL}.target_modules=all-linear", code=1)


@pytest.mark.row("F70")
def test_a_model_with_code_of_its_own(model: Path) -> None:
    own = {"model_type": "internlm_x", "auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}
    (model / "config.json").write_text(json.dumps({**SIZES, **own}))
    says_of(asked("config", model), "✗ CFG032", f"{MODEL}.trust_remote_code=true", code=1)
