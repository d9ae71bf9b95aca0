"""What kind of step a test makes: its plan, its config, its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

Hook = Callable[[Any], Any]
DATA_SIZE, WIDTH = 37, 6


@dataclass(frozen=True)
class Plan:
    """What kind of step. `hooks`: name of a value on its way to what replaces it."""

    estimator: str = "grpo"
    prompts: int = 4
    n: int = 4
    minis: int = 1
    epochs: int = 1
    ranks: int = 1
    micro: int = 3
    step: int = 1
    seed: int = 5
    temperature: float = 1.0
    entropy: float = 0.0
    kl_loss: str = ""
    kl_reward: str = ""
    mode: str = "vanilla"
    agg: str = "token-mean"
    shuffle: bool = False
    rollout_is: str | None = None
    rollout_is_threshold: float | str = 1.01
    rollout_rs: str | None = None
    rollout_rs_threshold: str | None = None
    bypass: str = ""
    """`loss_type`, where the engine's log-probabilities are the old ones."""
    by_std: bool = True
    critic_warmup: int = 0
    lr: float = 1e-3
    grad_clip: float = 0.5
    hooks: Mapping[str, Hook] = field(default_factory=dict)

    @property
    def critic(self) -> bool:
        return self.estimator == "gae"


def config_of(plan: Plan) -> dict[str, Any]:
    optim = {"lr": plan.lr, "lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "cosine",
             "min_lr_ratio": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}  # fmt: skip
    shared = {"ppo_mini_batch_size": -(-plan.prompts // plan.minis), "ppo_epochs": plan.epochs, "shuffle": plan.shuffle,
              "loss_agg_mode": plan.agg, "grad_clip": plan.grad_clip, "optim": optim,
              "fsdp_config": {"dtype": "float32", "model_dtype": "float32"}}  # fmt: skip
    correction = {"rollout_is": plan.rollout_is, "rollout_is_threshold": plan.rollout_is_threshold,
                  "rollout_is_batch_normalize": False, "rollout_rs": plan.rollout_rs,
                  "rollout_rs_threshold": plan.rollout_rs_threshold, "bypass_mode": bool(plan.bypass),
                  "loss_type": plan.bypass or "ppo_clip"}  # fmt: skip
    return {
        "actor_rollout_ref": {
            "model": {},
            "actor": shared | {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0,
                               "policy_loss": {"loss_mode": plan.mode}, "loss_scale_factor": 6.0,
                               "entropy_coeff": plan.entropy, "use_kl_loss": bool(plan.kl_loss), "kl_loss_coef": 0.05,
                               "kl_loss_type": plan.kl_loss or "k3"},
            "ref": {"fsdp_config": {"dtype": "float32", "model_dtype": "float32"}},
            "rollout": {"n": plan.n, "temperature": plan.temperature, "top_p": 1.0, "top_k": -1, "min_tokens": 0,
                        "ignore_eos": False, "stop": [], "stop_token_ids": [], "dtype": "float32"},
        },
        "critic": shared | {"cliprange_value": 0.5},
        "data": {"train_batch_size": plan.prompts, "max_prompt_length": 16, "max_response_length": WIDTH,
                 "shuffle": True, "seed": None, "truncation": "error", "train_max_samples": -1},
        "algorithm": {"adv_estimator": plan.estimator, "gamma": 0.99, "lam": 0.9,
                      "norm_adv_by_std_in_grpo": plan.by_std,
                      "use_kl_in_reward": bool(plan.kl_reward), "kl_penalty": plan.kl_reward or "kl",
                      "kl_ctrl": {"type": "fixed", "kl_coef": 0.1}, "rollout_correction": correction,
                      "filter_groups": {"enable": False}},
        "reward_model": {"rules": [{"kind": "digits", "name": None, "weight": 1.0, "data_sources": None},
                                   {"kind": "format", "name": "short", "weight": 0.5, "pattern": ".{0,4}"}]},
        "trainer": {"critic_warmup": plan.critic_warmup, "balance_batch": True, "total_training_steps": 20},
    }  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=34, special_tokens=["<pad>", "<eos>", "<unk>", "<user>", "<bot>"])
    core.train_from_iterator(["copy 0123456789", "copy 12 34 56 78 90"], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = ("{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
                          "{% if add_generation_prompt %}<bot>{% endif %}")  # fmt: skip
    return made
