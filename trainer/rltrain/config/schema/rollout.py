"""`actor_rollout_ref.rollout`: the engine that generates, and how it samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rltrain.config.engines import ENGINES
from rltrain.config.schema.base import Section
from rltrain.config.schema.model import Precision

_NAMES = tuple(ENGINES)
if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[_NAMES]


class ValKwargs(Section):
    """Sampling for validation; greedy by default."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    n: int = Field(default=1, gt=0)
    do_sample: bool = False


class CheckpointEngineConfig(Section):
    """How weights travel from the actor to the engines; the transport follows from the placement."""

    update_weights_bucket_megabytes: int = Field(default=512, gt=0)


class RolloutConfig(Section):
    """`actor_rollout_ref.rollout`."""

    name: EngineName
    """The engine. There is no default and no fallback."""
    n: int = Field(default=1, gt=0)
    """Samples per prompt."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    """-1: all tokens."""
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    """Strings that end a response."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides those of the end of sequence."""
    val_kwargs: ValKwargs = ValKwargs()
    dtype: Precision = "auto"
    gpu_memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    enforce_eager: bool = False
    free_cache_engine: bool = True
    """The colocated engine sleeps while the actor trains."""
    tensor_model_parallel_size: int = Field(default=1, gt=0)
    num_replicas: int | None = Field(default=None, gt=0)
    """Engines; null: as many as the devices hold, on a CPU without slots of rollout's own (`n_gpus_per_node`) one."""
    nnodes: int = Field(default=0, ge=0)
    """Nodes that belong to rollout alone (`hybrid_engine: false`)."""
    n_gpus_per_node: int = Field(default=0, ge=0)
    """Devices per such node; with `nnodes: 0`, devices beside the actor's on the same node. On a CPU, slots of rank and
    engine processes, which share a node's cores evenly; 0 there: as many as the engines need."""
    max_num_batched_tokens: int = Field(default=8192, gt=0)
    max_num_seqs: int = Field(default=1024, gt=0)
    max_model_len: int | None = Field(default=None, gt=0)
    """Null: `data.max_prompt_length + data.max_response_length`."""
    enable_chunked_prefill: bool = True
    """Read long prompts in parts. On a CPU they are read whole: vLLM cannot draw with a request's seed after a part."""
    enable_prefix_caching: bool = True
    log_prob_micro_batch_size_per_gpu: int | None = Field(default=None, gt=0)
    """Micro batch for the actor's old log-probabilities; null: `actor.ppo_micro_batch_size_per_gpu`."""
    calculate_log_probs: bool | None = None
    """Have the engine compute its own log-probabilities of the sampled tokens. True: of every answer. False: of none;
    there are no `training/rollout_probs_diff_*` and no rollout correction. Null: of every answer where the algorithm
    reads them (`rollout_is`, `bypass_mode`), else of one in 16, at least 32, for the metrics."""
    engine_kwargs: dict[str, dict[str, Any]] = {}
    """Passed through to the engine: `engine_kwargs.vllm.*`."""
    checkpoint_engine: CheckpointEngineConfig = CheckpointEngineConfig()
    max_retries: int = Field(default=2, ge=0)
    """How often a request is asked again that the engine gave up. rltrain's own."""
    start_timeout_s: float = Field(default=600, gt=0)
    """Longest time that an engine may take to start."""
    generate_timeout_s: float = Field(default=1800, gt=0)
    """Longest time of a generation phase in which no response is finished."""
