"""The step capsule: what one training step needs to be judged elsewhere. Written by a trainer, read by `rlcheck step`.

A capsule is a directory of four files, all readable without the trainer that wrote it:

    capsule.json         a `Capsule`
    rows.jsonl           a `CapsuleRow` each line, in the order of the batch
    batch.safetensors    what the step learnt from: `[B, …]` by the names below
    weights.safetensors  weights, optimizer states and gradients: `MOMENT/NAME`, see `MOMENTS`
    tokenizer/           the tokenizer's files, where they are small

B rows, P prompt tokens (padded on the left), R response tokens (padded on the right), T = P + R. Batch tensors, each
where the run has it: `input_ids`, `attention_mask`, `position_ids` [B, T]; `prompts` [B, P]; `responses`,
`response_mask`, `rollout_log_probs`, `old_log_probs`, `entropys`, `ref_log_probs`, `values`, `token_level_scores`,
`token_level_rewards`, `rollout_is_weights`, `rollout_rs_kept`, `advantages`, `returns` [B, R]; `truncated`,
`policy_version`, `reward_baselines`, `rollout_prompt_lengths`, `rollout_prompt_digests`, `rollout_log_probs_asked`
(rows without have `rollout_log_probs` of 0) [B]. Of an update: `ROLE.I/log_probs`, `ROLE.I/mask` and what else it read,
[B, R] in the batch's order, for mini batch I of ROLE (`actor`, `critic`).
"""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import Struct

SCHEMA = 1
MOMENTS = ("actor.before", "actor.exp_avg.before", "actor.exp_avg_sq.before", "actor.gradient", "actor.after",
           "actor.exp_avg.after", "actor.exp_avg_sq.after", "reference")  # fmt: skip
"""What `weights.safetensors` holds of each tensor, by its Hugging Face name; of a critic the same with `critic.`.
`gradient`: of the first mini batch, reduced over ranks, before the clip."""


class MicroRecord(Struct, frozen=True):
    """One forward and backward pass of one rank.

    `rows`: of the batch. `terms`: sums that the loss function gave: `loss` (this pass's share of the mini batch's
    loss), `pg_loss`, `entropy_loss`, `kl_loss` or `vf_loss`, `loss_tokens`; None is no finite number. `grad_norm`:
    L2 norm of what this rank gave to the reduction, None where it was not measured (one rank reduces nothing).
    """

    rank: int
    rows: tuple[int, ...]
    terms: dict[str, float | None]
    grad_norm: float | None = None


class MiniRecord(Struct, frozen=True):
    """One optimizer step of one role.

    `rows`: of the batch, by rank. `grad_norm`: over all ranks, reduced, before the clip. `applied`: False where it was
    skipped as not finite. `optimizer_steps`: taken since the run began, this one not counted. `adam_steps`: Adam's own
    count before this step, None where it has no state.
    """

    rows: tuple[tuple[int, ...], ...]
    micro_batches: tuple[MicroRecord, ...]
    grad_norm: float | None
    applied: bool
    lr: float
    optimizer_steps: int
    adam_steps: int | None = None


class EngineRecord(Struct, frozen=True):
    """Checksums of an engine's weights by Hugging Face name, as the engine itself reads them back, and of the actor's.

    `when`: `before` it generated, or `after` the step. `actor`: of the actor's parameters at that time, in the
    engine's dtype. `tensors`: of the whole model, of which `held` may be a part; 0: not said. `sampling`: what the
    engine itself made of the last sampling that it was asked for, by its own names. `missing`: why there are none.
    """

    engine: int
    when: str
    dtype: str = ""
    held: dict[str, str] = {}
    actor: dict[str, str] = {}
    tensors: int = 0
    sampling: dict[str, Any] = {}
    missing: str = ""


class Origin(Struct, frozen=True):
    """Where the weights of ROLE (`actor`, `critic`, `reference`) come from, read there without the training ranks.

    `source`: `files` of the model, the `checkpoint` that the run resumed from, or `warm-up`: the actor after the
    supervised warm-up. `path`: their directory. `tensors`: checksums by Hugging Face name of the numbers that the
    capsule keeps of each tensor, in `dtype`. `files`: sha256 by name. `missing`: why there are none.
    """

    role: str
    source: str = ""
    path: str = ""
    dtype: str = ""
    tensors: dict[str, str] = {}
    files: dict[str, str] = {}
    missing: str = ""


class OutputsRecord(Struct, frozen=True):
    """Checksums of what the modules of a role gave on one rank, in its first pass of the step.

    `digests`: by module, in the order of computation; those of numbers that are not finite end with ` not finite`.
    Large models: decoder layers alone. The trainer's own: what runs the step again compares them, nothing else can.
    """

    role: str
    rank: int
    digests: dict[str, str]


class Sampled(Struct, frozen=True):
    """What the engines were asked for: the sampling parameters that were sent."""

    temperature: float
    top_p: float
    top_k: int
    min_tokens: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class CapsuleRow(Struct, frozen=True):
    """One answer. `prompt_ids`: as sent to the engine; `response_ids`, `log_probs`: as it gave them, None where that
    was not recorded; `text`: as scored. `versions`: `[first token, version]` of each span. `baseline_text`:
    the greedy answer to the prompt as scored, where a baseline is made of it."""

    uid: str
    index: int
    sample: int
    data_source: str
    messages: tuple[dict[str, str], ...]
    prompt_text: str
    prompt_ids: tuple[int, ...]
    text: str
    ground_truth: Any
    extra_info: dict[str, Any]
    reward_parts: dict[str, float]
    score: float
    seed: int | None = None
    response_ids: tuple[int, ...] | None = None
    log_probs: tuple[float | None, ...] | None = None
    finish_reason: str = ""
    versions: tuple[tuple[int, int], ...] = ()
    baseline_text: str | None = None


class Capsule(Struct, frozen=True):
    """The head of a capsule.

    `config`: resolved, as rltrain's `config.yaml` has it; of verl its own; of TRL `{"trl": GRPOConfig, …}`.
    `model_config`, `generation_config`: of the actor;
    `critic_config`: of the critic, where its model is another. `files`: sha256 of the data's files by path.
    `origins`: of the weights that this step began with, and of the reference's. `begun`: when the run began, ISO 8601.
    `start_step`: the last step of the checkpoint that the run resumed from, 0 of a run from the start;
    `start_optimizer_steps`: taken by then, by role. `rows`: in the step; `data_rows`: of the data set; `kept_rows`:
    their numbers, None: all. `tensors`: `all`, or how they were chosen. `kl_coef`: of KL in the reward at this step.
    `policy_version`: the step whose update made the weights that this step began with. `missing`: what could not be
    kept, and why. `not_finite`: tensors whose gradient was not finite in an update that was skipped, by role and rank.
    """

    schema: int
    trainer: str
    trainer_version: str
    step: int
    total_steps: int
    seed: int
    world_size: int
    config: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, str]
    rows: int
    data_rows: int = 0
    tensors: str = "all"
    kept_rows: tuple[int, ...] | None = None
    model_config: dict[str, Any] = {}
    critic_config: dict[str, Any] = {}
    generation_config: dict[str, Any] = {}
    files: dict[str, str] = {}
    origins: tuple[Origin, ...] = ()
    begun: str = ""
    start_step: int = 0
    start_optimizer_steps: dict[str, int] = {}
    sampled: Sampled | None = None
    kl_coef: float | None = None
    policy_version: int = 0
    actor: tuple[MiniRecord, ...] = ()
    critic: tuple[MiniRecord, ...] = ()
    engines: tuple[EngineRecord, ...] = ()
    outputs: tuple[OutputsRecord, ...] = ()
    metrics: dict[str, float] = {}
    missing: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
