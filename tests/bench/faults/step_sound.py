"""Runs without a mistake, whose capsules `rlcheck step` must find the same in every link, and what each leaves unknown.

No capsule is offered with `algorithm.max_staleness` (the config is refused): its steps are of several policies. The
gsm8k recipes need a GPU and data, toy-sft trains without rollout: neither has a capsule on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.config.estimators import ESTIMATORS
from tests.bench.faults.fault import ACTOR, REWARDS, ROLLOUT, WITH_KL

GRPO, PPO = "toy-grpo", "toy-ppo"
ALGORITHM, MODEL = "algorithm", "actor_rollout_ref.model"
PACKED = (f"{MODEL}.use_remove_padding=true", "critic.model.use_remove_padding=true")
ONE_RANK = ("trainer.num_cpu_ranks=1",)
LITTLE = ("data.train_batch_size=32", f"{ACTOR}.ppo_mini_batch_size=8", f"{ROLLOUT}.n=4")
"""Shorter steps: 128 answers in four mini batches."""
CONSTANT = f"{ACTOR}.optim.lr_scheduler_type=constant"
KL_REWARD = (f"{ALGORITHM}.use_kl_in_reward=true", f"{ALGORITHM}.kl_ctrl.kl_coef=0.05")
TWO_PARTS = "reward_model.rules=[{kind: digits, weight: 0.8}, {kind: format, pattern: '[0-9]+', weight: 0.2}]"
LLAMA = "{model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, \
num_key_value_heads: 2, max_position_embeddings: 64, tie_word_embeddings: true, initializer_range: 0.05}"


@dataclass(frozen=True)
class Sound:
    """One run without a mistake."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    """Links that may stay unknown in its capsules, said before the runs."""
    resume_at: int = 0
    """The run ends with this step, and a second one goes on from its checkpoint; 0: one run."""


def _seeded(seed: int) -> Sound:
    """A recipe as it is shipped, by SEED; some on one rank, some packed."""
    recipe = (PPO, GRPO)[seed % 2]
    ranks, packed = ONE_RANK if seed % 5 < 2 else (), PACKED if seed % 3 == 0 else ()
    if recipe == GRPO:
        packed = packed[:1]
    return Sound(f"seed-{seed:02}-{recipe[4:]}", recipe, (*ranks, *packed, f"trainer.seed={seed}"))


def _estimator(name: str) -> Sound:
    needs = ESTIMATORS[name].needs
    return Sound(
        f"estimator-{name}",
        PPO if "critic" in needs else GRPO,
        (*LITTLE, f"{ALGORITHM}.adv_estimator={name}", f"{ALGORITHM}.gamma=0.95", f"{ALGORITHM}.lam=0.9"),
    )


def _losses() -> tuple[Sound, ...]:
    modes = ("vanilla", "gspo", "cispo")
    ways = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    kinds = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
    high = (f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.28", f"{ACTOR}.optim.lr=5e-3")
    return (
        *(Sound(f"loss-{mode}", GRPO, (*LITTLE, *high, f"{ACTOR}.policy_loss.loss_mode={mode}",
                                       f"{ACTOR}.ppo_epochs=2")) for mode in modes),
        *(Sound(f"mean-{way}", (GRPO, PPO)[at % 2], (*LITTLE, f"{ACTOR}.loss_agg_mode={way}", *PACKED[:1],
                                                     f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"))
          for at, way in enumerate(ways)),
        *(Sound(f"kl-loss-{kind}", GRPO, (*LITTLE, *WITH_KL, f"{ACTOR}.kl_loss_type={kind}")) for kind in kinds[::2]),
        *(Sound(f"kl-reward-{kind}", PPO, (*LITTLE, *KL_REWARD, f"{ALGORITHM}.kl_penalty={kind}"))
          for kind in kinds[1::2]),
        Sound("kl-reward-adaptive", PPO, (*LITTLE, *KL_REWARD, f"{ALGORITHM}.kl_ctrl.type=adaptive",
                                          f"{ALGORITHM}.kl_ctrl.horizon=1000")),
        Sound("kl-both", GRPO, (*LITTLE, *WITH_KL, *KL_REWARD)),
        Sound("clip-none", GRPO, (*LITTLE, f"{ACTOR}.clip_ratio_c=null", f"{ACTOR}.grad_clip=null")),
        Sound("norm-factor", GRPO, (*LITTLE, f"{ALGORITHM}.norm_adv_by_std_in_grpo=false", *ONE_RANK,
                                    f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
                                    f"{ACTOR}.loss_scale_factor=5")),
    )  # fmt: skip


SAMPLING = (
    Sound("temperature-cold", GRPO, (*LITTLE, f"{ROLLOUT}.temperature=0.7", f"{ROLLOUT}.calculate_log_probs=true")),
    Sound("temperature-hot", PPO, (*LITTLE, f"{ROLLOUT}.temperature=1.3", *PACKED)),
    Sound("top-p", GRPO, (*LITTLE, f"{ROLLOUT}.top_p=0.9", f"{ROLLOUT}.calculate_log_probs=true")),
    Sound("top-k", PPO, (*LITTLE, f"{ROLLOUT}.top_k=5", f"{ROLLOUT}.temperature=0.8")),
    Sound("top-both-hf", GRPO, (*LITTLE, f"{ROLLOUT}.name=hf", f"{ROLLOUT}.top_k=8", f"{ROLLOUT}.top_p=0.95")),
    Sound("min-tokens", GRPO, (*LITTLE, f"{ROLLOUT}.min_tokens=3")),
    Sound("ignore-eos", GRPO, (*LITTLE, f"{ROLLOUT}.ignore_eos=true")),
    Sound("log-probs-none", GRPO, (*LITTLE, f"{ROLLOUT}.calculate_log_probs=false")),
    Sound("hf-ppo", PPO, (*LITTLE, f"{ROLLOUT}.name=hf", *PACKED)),
    Sound("hf-grpo", GRPO, (*LITTLE, f"{ROLLOUT}.name=hf", *ONE_RANK)),
    Sound("two-engines", GRPO, (*LITTLE, f"{ROLLOUT}.num_replicas=2", f"{ROLLOUT}.n_gpus_per_node=2",
                                "actor_rollout_ref.hybrid_engine=false")),
)  # fmt: skip
UPDATES = (
    Sound("epochs", PPO, (*LITTLE, f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.shuffle=true", "critic.ppo_epochs=3")),
    Sound("one-mini", GRPO, (*LITTLE, f"{ACTOR}.ppo_mini_batch_size=32", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8")),
    Sound("odd-mini", GRPO, ("data.train_batch_size=9", f"{ACTOR}.ppo_mini_batch_size=3", f"{ROLLOUT}.n=5",
                             *PACKED[:1])),
    Sound("dynamic", PPO, (*LITTLE, *PACKED, f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=96")),
    Sound("critic-warm-up", PPO, (*LITTLE, "trainer.critic_warmup=3")),
    Sound("unbalanced", GRPO, (*LITTLE, "trainer.balance_batch=false", "data.shuffle=false")),
    Sound("checkpointing", PPO, (*LITTLE, f"{MODEL}.enable_gradient_checkpointing=true",
                                 "critic.model.enable_gradient_checkpointing=true",
                                 f"{MODEL}.use_fused_kernels=false")),
    Sound("adam", GRPO, (*LITTLE, f"{ACTOR}.optim.betas=[0.8,0.95]", f"{ACTOR}.optim.weight_decay=0.1",
                         f"{ACTOR}.optim.eps=1e-6", f"{ACTOR}.grad_clip=0.05")),
    Sound("rate-warm-up", GRPO, (*LITTLE, f"{ACTOR}.optim.lr_warmup_steps=2",
                                 f"{ACTOR}.optim.lr_scheduler_type=linear")),
    Sound("bfloat16", GRPO, (*LITTLE, f"{ACTOR}.fsdp_config.dtype=bfloat16", f"{ROLLOUT}.dtype=bfloat16")),
    Sound("bfloat16-ppo", PPO, (*LITTLE, f"{ACTOR}.fsdp_config.dtype=bfloat16", "critic.fsdp_config.dtype=bfloat16",
                                *PACKED)),
    Sound("llama", GRPO, (*LITTLE, *WITH_KL, f"toy.model={LLAMA}", "toy.vocab_size=64")),
    Sound("warm-up", GRPO, (*LITTLE, *WITH_KL, "sft_warmup.steps=5"), ("start-weights",)),
)  # fmt: skip
BATCHES = (
    Sound("dapo", GRPO, (*LITTLE, f"{ALGORITHM}.filter_groups.enable=true", f"{ALGORITHM}.filter_groups.metric=score",
                         f"{ACTOR}.clip_ratio_high=0.28", f"{ALGORITHM}.mask_truncated_completions=true",
                         "reward_model.overlong_buffer.enable=true", "reward_model.overlong_buffer.len=2")),
    Sound("masked-ppo", PPO, (*LITTLE, f"{ALGORITHM}.mask_truncated_completions=true", "data.max_response_length=5")),
    Sound("two-rules", GRPO, (*LITTLE, TWO_PARTS)),
    Sound("own-reward", GRPO, (*LITTLE, "reward_model.rules=[]", f"custom_reward_function.path={REWARDS}",
                               "custom_reward_function.name=longer_is_better"), ("rewards",)),
    Sound("weights-token", GRPO, (*LITTLE, f"{ALGORITHM}.rollout_correction.rollout_is=token")),
    Sound("weights-sequence", PPO, (*LITTLE, f"{ALGORITHM}.rollout_correction.rollout_is=sequence",
                                    f"{ALGORITHM}.rollout_correction.rollout_is_batch_normalize=true")),
    Sound("bypass", GRPO, (*LITTLE, f"{ALGORITHM}.rollout_correction.bypass_mode=true")),
    Sound("resumed-ppo", PPO, (*LITTLE, *PACKED, CONSTANT), (), 2),
    Sound("resumed-grpo", GRPO, (*LITTLE, *WITH_KL, *ONE_RANK, CONSTANT), (), 2),
    Sound("resumed-adaptive", GRPO, (*LITTLE, *KL_REWARD, f"{ALGORITHM}.kl_ctrl.type=adaptive", CONSTANT), (), 2),
)  # fmt: skip
SOUND = (
    *map(_seeded, range(1, 13)),
    *map(_estimator, ESTIMATORS),
    *_losses(),
    *SAMPLING,
    *UPDATES,
    *BATCHES,
)
