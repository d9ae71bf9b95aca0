"""miles: slime's options with LoRA, FSDP2 and engines that evaluate; it refuses what it does not know
(radixark/miles@31f1ca9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer
from rlcheck.measure.config.trainers import slime

_FIELDS = {
    **slime.FIELDS,
    "actor.model.lora_alpha": "lora-alpha",
}
_NAMED = {
    **slime.NAMED,
    "actor.sharding.strategy": "train-backend",
    "actor.model.lora_rank": "lora-rank",
    "actor.model.target_modules": "target-modules",
}


def _is_own(words: Sequence[str]) -> bool:
    """Whether WORDS are of miles, or of slime in equal measure."""
    return slime.is_family(words) and slime.num_unknown("miles", words) <= slime.num_unknown("slime", words)


def _turned(kind: str, words: Sequence[str]) -> str:
    """The kind of the parser that takes WORDS: Megatron's, or FSDP's with `--train-backend fsdp`."""
    given = [word.partition("=")[2] if "=" in word else (*words, "")[number + 1] for number, word in enumerate(words)
             if word.partition("=")[0] == "--train-backend"]  # fmt: skip
    return f"{kind}-fsdp" if given[-1:] == ["fsdp"] else kind


def _derive(config: Config) -> dict[str, Any]:
    pick = config.pick
    rank, modules = pick.whole("lora-rank", 0), pick.text("target-modules", "")
    found = slime.derive(config) | {
        "actor.model.lora_rank": rank,
        "actor.model.target_modules": tuple(modules.split(",")) if "," in modules else modules or UNKNOWN,
        "ref.shares_actor": rank > 0,
        "rollout.tensor_parallel": pick.whole("rollout-num-gpus-per-engine", 1),
    }
    if pick.raw("offload-train") is False:  # respected with a critic, too
        found |= {name: False for name in found if name.endswith((".param_offload", ".grad_offload",
                                                                  ".optimizer_offload"))}  # fmt: skip
    if not config.kind.endswith("-fsdp"):
        return found
    half = "float16" if pick.flag("fp16") else "bfloat16"
    sharding = {
        "strategy": "fsdp2", "dtype": half, "model_dtype": "float32" if pick.flag("keep-fp32-master") else half,
        "reduce_dtype": "float32", "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1,
        "expert_parallel": 1, "offload_policy": pick.flag("fsdp-cpu-offload"), "cpu_optimizer_share": 0.0,
    }  # fmt: skip
    for role in ("actor", "ref", "critic", "reward_model"):
        found |= {f"{role}.sharding.{name}": value for name, value in sharding.items()}
    return found | {"actor.model.gradient_checkpointing": pick.flag("gradient-checkpointing")}


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What `miles_validate_args` stops at, beside slime's."""
    # An engine has all its GPUs for its tensors, whatever its pipeline.
    yield from (one for one in slime.refused(config, spec) if one.key != "rollout-num-gpus-per-engine")
    pick = config.pick
    estimator, fsdp = pick.text("advantage-estimator", "grpo"), config.kind.endswith("-fsdp")
    if estimator == "ppo" and fsdp:
        yield Refusal("advantage-estimator", "expected train-backend megatron with ppo, got fsdp")
    if estimator == "ppo" and pick.text("megatron-to-hf-mode") == "bridge":
        yield Refusal("megatron-to-hf-mode", "expected raw with ppo, got bridge")
    if estimator == "ppo" and pick.number("kl-coef", 0.0) != 0:
        yield Refusal("kl-coef", f"expected 0 with ppo, got {pick.number('kl-coef'):g}")
    if config.kind.startswith("async") and estimator == "ppo" and not (
        pick.flag("use-rollout-logprobs") or pick.flag("use-tis") or pick.flag("keep-old-actor")):  # fmt: skip
        yield Refusal("advantage-estimator", "expected use-rollout-logprobs, use-tis or keep-old-actor beside ppo with "
                      "train_async.py, got none", lacks=True)  # fmt: skip
    if fsdp and pick.whole("context-parallel-size", 1) != 1:
        yield Refusal("context-parallel-size", f"expected 1 with train-backend fsdp, got "
                      f"{pick.whole('context-parallel-size')}")  # fmt: skip
    if (rank := pick.whole("lora-rank", 0)) > 0 and pick.text("target-modules") is None:
        yield Refusal("lora-rank", f"expected target-modules beside lora-rank = {rank}, got none", lacks=True)
    yield from _engines(config)
    yield from _pairs(config)


def _engines(config: Config) -> Iterator[Refusal]:
    """Engines that evaluate, and how weights get to engines."""
    pick = config.pick
    evaluate, each = pick.whole("eval-num-gpus", 0), pick.whole("eval-num-gpus-per-engine", 1)
    if evaluate > 0 and each > 0 and evaluate % each:
        yield Refusal("eval-num-gpus", f"expected a multiple of eval-num-gpus-per-engine = {each}, got {evaluate}")
    own = next((key for key in config.given if key.startswith("eval-sglang-")), "")
    if own and evaluate == 0:
        yield Refusal(own, "expected eval-num-gpus beside it, got none", lacks=True)
    mode = pick.text("update-weight-transfer-mode", "broadcast")
    if mode in ("p2p", "disk-delta"):
        if pick.flag("colocate"):
            yield Refusal("update-weight-transfer-mode", f"expected broadcast with colocate, got {mode}")
        if pick.whole("lora-rank", 0) > 0:
            yield Refusal("update-weight-transfer-mode", f"expected broadcast with lora-rank, got {mode}")
    if pick.flag("use-session-server") and pick.text("pause-generation-mode") == "abort":
        yield Refusal("pause-generation-mode", "expected another than abort with use-session-server, got abort")


def _pairs(config: Config) -> Iterator[Refusal]:
    """Options that need another."""
    pick = config.pick
    if pick.flag("use-dynamic-global-batch-size") and not pick.flag("use-dynamic-batch-size") and not pick.raw(
        "multi-lora-n-adapters"):  # fmt: skip
        yield Refusal("use-dynamic-global-batch-size", "expected use-dynamic-batch-size beside it, got none",
                      lacks=True)  # fmt: skip
    if pick.flag("balance-by-flops") and not pick.flag("use-dynamic-batch-size"):
        yield Refusal("balance-by-flops", "expected use-dynamic-batch-size beside it, got none", lacks=True)
    if pick.flag("recompute-logprobs-via-prefill") and not pick.flag("true-on-policy-mode"):
        yield Refusal("recompute-logprobs-via-prefill", "expected true-on-policy-mode beside it, got none", lacks=True)
    if pick.text("qkv-format") == "bshd" and pick.flag("use-dynamic-batch-size"):
        yield Refusal("qkv-format", "expected thd with use-dynamic-batch-size, got bshd")
    if pick.text("offload-train-target", "cpu") == "disk" and config.kind.endswith("-fsdp"):
        yield Refusal("offload-train-target", "expected cpu with train-backend fsdp, got disk")


TRAINER = Trainer(
    name="miles",
    title="miles",
    command=slime.COMMAND,
    signs=("train.py", "train_async.py"),
    owns=_is_own,
    turned=_turned,
    kind="rl",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=slime.LACKS,
    refused=_refused,
    abbreviates=False,
)
