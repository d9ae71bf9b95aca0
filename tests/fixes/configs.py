"""Faults in the config of a run: a value that breaks a rule; the printed override is put into the script or YAML."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import ROOT
from tests.fixes.scene import Case, Scene

_SCRIPT = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=train.parquet data.val_files=test.parquet \\
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path={model} actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 trainer.logger=console trainer.n_gpus_per_node=4 \\
    {faults} \\
    "$@"
"""
_ACTOR, _ROLLOUT, _MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def verl(*overrides: str) -> Callable[[Scene], None]:
    """A launch script of verl with these overrides among the others."""

    def plant(scene: Scene) -> None:
        scene.script = scene.here / "run.sh"
        scene.script.write_text(
            _SCRIPT.format(model=ROOT / "docs" / "examples" / "model-7b", faults=" ".join(overrides))
        )
        scene.words = ["config", str(scene.script)]

    return plant


def rltrain(*overrides: str) -> Callable[[Scene], None]:
    """The toy recipe of rltrain with these overrides."""

    def plant(scene: Scene) -> None:
        scene.words = ["config", str(ROOT / "trainer/rltrain/recipes/toy-grpo.yaml"), *overrides]

    return plant


def _batches(fault: str, check: str, fix: str) -> Case:
    return Case("batch sizes", check, "batch-arithmetic", fix, verl(fault))


CONFIGS = (
    _batches("data.train_batch_size=100", "CFG011", "ppo_mini_batch_size="),
    _batches("trainer.n_gpus_per_node=3", "CFG010", "data.train_batch_size="),
    _batches(f"{_ACTOR}.ppo_micro_batch_size_per_gpu=7", "CFG014", "ppo_micro_batch_size_per_gpu="),
    _batches(f"{_ACTOR}.ppo_micro_batch_size_per_gpu=7", "CFG014", "use_dynamic_bsz="),
    Case(
        "batch sizes", "CFG011", "batch-arithmetic", "ppo_mini_batch_size=", rltrain(f"{_ACTOR}.ppo_mini_batch_size=3")
    ),
    Case(
        "micro batches",
        "CFG012",
        "micro-batch-keys",
        "ppo_micro_batch_size=null",
        verl(f"{_ACTOR}.ppo_micro_batch_size=4"),
    ),
    Case("micro batches", "CFG012", "micro-batch-keys", "critic.", verl("algorithm.adv_estimator=gae")),
    Case(
        "parallel sizes",
        "CFG016",
        "sequence-parallel-mismatch",
        "ulysses",
        verl(f"{_ACTOR}.ulysses_sequence_parallel_size=3"),
    ),
    Case(
        "parallel sizes", "CFG018", "rollout-parallel", "tensor_model", verl(f"{_ROLLOUT}.tensor_model_parallel_size=3")
    ),
    Case("parallel sizes", "CFG017", "fsdp-roles", "fsdp_size", verl(f"{_ACTOR}.fsdp_config.fsdp_size=3")),
    Case("estimator", "CFG024", "estimator-needs", "rollout.n=", rltrain(f"{_ROLLOUT}.n=1")),
    Case("lengths", "CFG040", "run-lengths", "max_model_len", verl(f"{_ROLLOUT}.max_model_len=1000")),
    Case(
        "lengths",
        "CFG043",
        "run-batched-tokens",
        "max_num_batched_tokens",
        verl(f"{_ROLLOUT}.max_num_batched_tokens=100", f"{_ROLLOUT}.enable_chunked_prefill=False"),
    ),
    Case("sampling", "CFG059", "run-sampling", "temperature=", verl(f"{_ROLLOUT}.temperature=0")),
    Case("sampling", "CFG060", "run-sampling", "top_p=", rltrain(f"{_ROLLOUT}.top_p=0.5")),
    Case("loss terms", "CFG056", "run-entropy", "entropy_coeff", rltrain(f"{_ACTOR}.entropy_coeff=-1")),
    Case("loss terms", "CFG057", "run-kl", "use_kl_in_reward=", verl("algorithm.use_kl_in_reward=True")),
    Case("loss terms", "CFG054", "run-clipping", "grad", verl(f"{_ACTOR}.grad_clip=0")),
    Case("loss terms", "CFG052", "run-clipping", "clip_ratio_low", rltrain(f"{_ACTOR}.clip_ratio_low=2")),
    Case(
        "learning rate",
        "CFG049",
        "run-learning-rates",
        "critic.optim.lr=",
        verl("algorithm.adv_estimator=gae", "critic.optim.lr=1"),
    ),
    Case("engine", "CFG070", "engine-unknown", "rollout.name=", verl(f"{_ROLLOUT}.name=vlm")),
    Case("engine", "CFG022", "rollout-mode", "mode=async", verl(f"{_ROLLOUT}.mode=sync")),
    Case("engine", "CFG061", "run-rollout-correction", "rollout_is", verl(f"{_ROLLOUT}.quantization=fp8")),
    Case("precision", "CFG050", "run-precision", "float32", verl(f"{_ACTOR}.fsdp_config.model_dtype=bfloat16")),
    Case("precision", "CFG051", "run-precision", "bfloat16", verl(f"{_ROLLOUT}.dtype=float16")),
    Case("adapters", "CFG046", "run-lora-rank", "lora_alpha=", verl(f"{_MODEL}.lora_rank=8", f"{_MODEL}.lora_alpha=0")),
    Case("loggers", "CFG069", "run-loggers", "trainer.logger=", verl("'trainer.logger=[console,nonesuch]'")),
    Case("loggers", "CFG068", "run-loggers", "WANDB_MODE", rltrain("trainer.logger=[console,wandb]")),
    Case("saving", "CFG026", "save-test-frequency", "save_freq=", rltrain("trainer.save_freq=1000")),
)
