"""What a run config asks for: the same words for every framework, and where each was written.

`RunSpec` is what a reader of any framework's config (or a plain file of these fields) arrives at; `ConfigFacts` holds
it with everything that was found on the way: keys nobody knows, files that are not there, the models' own sizes.
"""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import Fact, Missing, Struct


class Sharding(Struct, frozen=True):
    """How a model is placed on the GPUs of its role. Dtypes as torch names them: float32, bfloat16, float16.

    `shard_size`: GPUs that share one copy of the parameters; -1: all of the role's. `sequence_parallel` is Ulysses'.
    `offload_policy` is FSDP2's own CPU offload; `param_offload` and `optimizer_offload` move a role's state to the host
    while it is idle. `cpu_optimizer_share`: of the optimizer's state that never leaves the host, where its steps are
    taken; Megatron's and DeepSpeed's. The four parallel sizes are Megatron's. `zero_stage` and `bucket_elements` (its
    reduce_bucket_size) are DeepSpeed's, whose `param_offload` keeps parameters on the host for good.
    """

    strategy: str = "fsdp2"
    shard_size: int = -1
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    param_offload: bool = False
    grad_offload: bool = False
    optimizer_offload: bool = False
    cpu_optimizer_share: float = 0.0
    offload_policy: bool = False
    model_dtype: str = "float32"
    dtype: str = "bfloat16"
    reduce_dtype: str = "float32"
    sequence_parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    zero_stage: int = 0
    bucket_elements: int = 500_000_000


class ModelUse(Struct, frozen=True):
    """A model as one role uses it. `path` is as written (a directory, or a name on the hub); `override` are keys laid
    over its config.json; `target_modules` is what LoRA trains (`all-linear`, or names)."""

    path: str | None = None
    tokenizer_path: str | None = None
    trust_remote_code: bool = False
    override: dict[str, Any] = {}
    custom_chat_template: str | None = None
    gradient_checkpointing: bool = True
    activation_offload: bool = False
    remove_padding: bool = True
    fused_kernels: bool = False
    liger: bool = False
    lora_rank: int = 0
    lora_alpha: float = 16
    target_modules: str | tuple[str, ...] = "all-linear"
    exclude_modules: str | tuple[str, ...] | None = None


class Optim(Struct, frozen=True):
    """The optimizer (AdamW unless said otherwise) and its schedule, whose warm-up counts training iterations."""

    name: str = "adamw"
    lr: float = 1e-6
    lr_warmup_steps: int = -1
    lr_warmup_steps_ratio: float = 0.0
    lr_scheduler_type: str = "constant"
    weight_decay: float = 0.01
    grad_clip: float | None = 1.0


class RoleSpec(Struct, frozen=True):
    """Actor, ref, critic or reward model.

    Sizes: `mini_batch_size` counts prompts over all GPUs; `micro_batch_size` samples per GPU in one forward and
    backward pass (None: not given); with `dynamic_batch` passes are filled up to `max_tokens` tokens per GPU instead.
    `infer_*` are the same for passes without gradient (log-probabilities, values). `chunked_logits`: the float32
    distribution over the vocabulary exists for `chunk_tokens` tokens at a time.
    """

    name: str
    trained: bool = True
    model: ModelUse = ModelUse()
    sharding: Sharding = Sharding()
    optim: Optim = Optim()
    mini_batch_size: int | None = None
    micro_batch_size: int | None = None
    dynamic_batch: bool = False
    max_tokens: int = 16384
    infer_micro_batch_size: int | None = None
    infer_dynamic_batch: bool = False
    infer_max_tokens: int = 16384
    epochs: int = 1
    chunked_logits: bool = False
    chunk_tokens: int = 1024
    loss_bytes: float = 12.0
    """Of a logit besides itself, where distributions exist whole: what the loss makes of it. The default is log-softmax
    in float32, its gradient, and that of the logits."""
    read_bytes: float = 12.0
    """The same of passes without gradient."""
    block_elements: int = 0
    """Logits that a fused head makes at a time; 0: as many as rltrain's."""
    unshards_to_read: bool = False
    """FSDP gathers all parameters for passes without gradient, not a layer at a time."""
    entropy_checkpointing: bool = False
    torch_compile: bool = False
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float | None = 3.0
    cliprange_value: float | None = None
    entropy_coeff: float = 0.0
    calculate_entropy: bool = False
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    loss_agg_mode: str = "token-mean"
    loss_mode: str = "vanilla"
    save_contents: tuple[str, ...] = ("model", "optimizer", "extra")
    shares_actor: bool = False
    """A reference that is the actor without its LoRA adapter: no copy of its own."""
    engine: RolloutSpec | None = None
    """The inference engine that serves a reward model, where one does."""
    own_gpus: int = 0
    """GPUs that belong to this role alone; 0: it shares those of training."""
    beside: str = ""
    """The role whose own GPUs this one shares."""


class RolloutSpec(Struct, frozen=True):
    """The engine that generates. `memory_utilization` is a share of the GPU's total memory.

    `sleeps`: it gives its memory back while the actor trains. `in_process`: it is in the process of the training rank,
    whose context it shares; one without a cache of its own generates with the actor itself.
    `sync_bucket_bytes`: staging buffer of weight sync.
    """

    name: str = "vllm"
    mode: str = "async"
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    dtype: str = "bfloat16"
    memory_utilization: float = 0.5
    enforce_eager: bool = False
    sleeps: bool = True
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    max_batched_tokens: int = 8192
    max_seqs: int = 1024
    max_model_len: int | None = None
    chunked_prefill: bool = True
    prefix_caching: bool = True
    load_format: str = "dummy"
    calculate_log_probs: bool = False
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    layered_summon: bool = False
    multi_turn: bool = False
    sync_bucket_bytes: int = 2 << 30
    in_process: bool = False
    val_temperature: float = 0.0
    val_n: int = 1
    val_do_sample: bool = False
    engine_kwargs: dict[str, Any] = {}


class DataSpec(Struct, frozen=True):
    """The data: lengths in tokens, batch in prompts."""

    train_files: tuple[str, ...] = ()
    val_files: tuple[str, ...] = ()
    prompt_key: str = "prompt"
    source_key: str = "data_source"
    max_prompt_length: int = 512
    max_response_length: int = 512
    train_batch_size: int = 1024
    filter_overlong_prompts: bool = False
    truncation: str = "error"
    template_kwargs: dict[str, Any] = {}
    made: str = ""
    """Rows that the framework makes itself (rltrain's toy task), in words; "" where files are read."""
    train_max_samples: int = -1


class AlgorithmSpec(Struct, frozen=True):
    """Advantages and KL control."""

    adv_estimator: str = "gae"
    gamma: float = 1.0
    lam: float = 1.0
    use_kl_in_reward: bool = False
    kl_coef: float = 0.001
    kl_ctrl_type: str = "fixed"
    norm_adv_by_std_in_grpo: bool = True
    rollout_is: str | None = None
    bypass_mode: bool = False


class RewardSpec(Struct, frozen=True):
    """How responses are scored: rules by kind and pattern, a user's function (file and name), an endpoint."""

    rules: tuple[dict[str, Any], ...] = ()
    function_path: str | None = None
    function_name: str = "compute_score"
    manager: str = ""
    endpoints: tuple[str, ...] = ()


class RunSpec(Struct, frozen=True):
    """One run. Separate rollout GPUs exist where `colocated` is false: `rollout_gpus_per_node` on each of
    `rollout_nodes` nodes (0 nodes: beside the training GPUs of the same node)."""

    nodes: int = 1
    gpus_per_node: int = 1
    device: str = "cuda"
    expandable_segments: bool = True
    """torch's allocator lets segments grow in training ranks, as rltrain and most trainers tell it; by itself it does
    not."""
    colocated: bool = True
    rollout_nodes: int = 0
    rollout_gpus_per_node: int = 0
    actor: RoleSpec = RoleSpec(name="actor")
    ref: RoleSpec | None = None
    critic: RoleSpec | None = None
    reward_model: RoleSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    data: DataSpec = DataSpec()
    algorithm: AlgorithmSpec = AlgorithmSpec()
    reward: RewardSpec = RewardSpec()
    loggers: tuple[str, ...] = ("console",)
    save_freq: int = -1
    test_freq: int = -1
    val_before_train: bool = True
    total_epochs: int = 1
    total_steps: int | None = None
    critic_warmup: int = 0
    """The first step in which the actor learns, beside the critic."""
    run_dir: str = ""
    project: str = ""
    experiment: str = ""
    ray_address: str = ""


class Place(Struct, frozen=True):
    """Where something was written: a file with 1-based line and column, or the override that said it.

    `text` is the override, as typed. Both empty: a default.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    text: str = ""


class KeyProblem(Struct, frozen=True):
    """Something about one key, known before anything is computed from it.

    `kind`: unknown, moved, deprecated, foreign (another framework's), type, missing (must be given), unresolved (an
    interpolation), refused (the framework's own rules say no), syntax; unread (accepted, and nothing is known to read
    it), idle (of another framework, at a value that changes nothing), off and moot (another key switches off what reads
    it; the user wrote that key where it is moot) stop no run. `instead`: the key to use, or the nearest one. `message`:
    one line, without the key and without the place.
    """

    kind: str
    key: str
    message: str
    place: Place = Place()
    instead: tuple[str, ...] = ()
    value: str = ""


class TokenizerFacts(Struct, frozen=True):
    """A tokenizer as its files say, without running it. `num_tokens` counts added tokens; ids -1: not there."""

    directory: str = ""
    num_tokens: int = 0
    max_token_id: int = -1
    eos_token: str = ""
    eos_id: int = -1
    pad_token: str = ""
    pad_id: int = -1
    bos_token: str = ""
    chat_template: str = ""
    """The template's text; "" where there is none."""
    template_place: str = ""
    needs_remote_code: bool = False
    class_name: str = ""


class ModelFacts(Struct, frozen=True):
    """A model as its directory (or cache snapshot) says. `sizes` is its config.json, overrides applied.

    `modules`: names of its linear layers' last parts (q_proj, …) from the weight files' index; `weight_bytes`: of the
    weight files. `source`: the file that `sizes` was read from, or what was given in its place. `lacking`: why no
    file was read, where the sizes are those that rlcheck knows by the model's name.
    """

    path: str = ""
    source: str = ""
    sizes: dict[str, Any] = {}
    generation_eos: tuple[int, ...] = ()
    auto_map: dict[str, Any] = {}
    modules: Fact[tuple[str, ...]] = Fact()
    weight_bytes: Fact[int] = Fact()
    lacking: Missing | None = None
    tokenizer: Fact[TokenizerFacts] = Fact()


class PathFacts(Struct, frozen=True):
    """A path in the config. `want`: file, directory, or either; `problem`: why it cannot be used, "" if it can.

    With `--no-fs`, or for what only exists elsewhere (hdfs://, s3://), `looked` is false and nothing is claimed.
    """

    key: str
    given: str
    resolved: str
    want: str = "file"
    looked: bool = True
    exists: bool = True
    problem: str = ""


class KeyTable(Struct, frozen=True):
    """The keys that a config was held against: where they were read, when that was published, days since then."""

    source: str = ""
    date: str = ""
    age_days: int | None = None


class ConfigFacts(Struct, frozen=True):
    """A config that was read. `values`: every key of the framework by its dotted name, defaults filled in;
    `given`: places of the keys that the user wrote; `fallbacks`: what was assumed because the config leaves it open.

    `without`: fields of `spec`, by their dotted paths, that have no value, and why: the framework has no such setting
    (absent), or its config does not say. What `spec` holds there means nothing; `rlcheck.facts.asking` guards it.
    """

    framework: str = ""
    """rltrain, verl, spec, or a trainer of `rlcheck/data/trainers`."""
    version: str = ""
    """Of the framework, whose defaults were taken."""
    unsure_keys: str = ""
    """Why the framework may have other keys than those that are known, in a sentence; "" where it does not."""
    source: str = ""
    spec: RunSpec = RunSpec()
    without: dict[str, Missing] = {}
    values: dict[str, Any] = {}
    given: dict[str, Place] = {}
    table: KeyTable = KeyTable()
    problems: tuple[KeyProblem, ...] = ()
    notes: tuple[str, ...] = ()
    models: dict[str, Fact[ModelFacts]] = {}
    """By role: actor, ref, critic, reward_model."""
    paths: tuple[PathFacts, ...] = ()
    credentials: dict[str, str] = {}
    """Logger to what it lacks, in words; "" where it has all it needs."""
    fallbacks: tuple[str, ...] = ()
    num_gpus: Fact[int] = Fact()
    """GPUs that this machine shows, where it was looked at."""
    reward_names: Fact[tuple[str, ...]] = Fact()
    """Names that the reward function's file defines; `*` among them where it imports all of another module."""
    reward_error: str = ""
    """Why that file is no Python, with its line; "" where it is, or was not read."""
