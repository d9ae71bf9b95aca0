"""Memory of a run, phase by phase and owner by owner: predicted, and measured where it was run. All sizes in bytes."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class Owner(Struct, frozen=True):
    """Who holds memory during a phase. `kind`: weights, gradients, optimizer, activations, logits, unsharded (layers
    that FSDP has gathered), buffers (weight sync, reductions), kv_cache, graphs, context, fragments (what is between
    tensors and is of no use), slack (what the allocator holds for nobody, and gives back when it must), engine.
    `role`: actor, ref, critic, reward_model, rollout, or "" for the process."""

    kind: str
    num_bytes: int
    role: str = ""


class Phase(Struct, frozen=True):
    """One phase of the run on the fullest GPU (or host) of its pool.

    `name`: load, rollout, weight sync, log-probs, ref log-probs, values, reward, actor update, actor step,
    critic update, critic step, checkpoint, export. `pool`: train, host; rollout and roles that have GPUs of their own.
    """

    name: str
    owners: tuple[Owner, ...]
    pool: str = "train"

    @property
    def num_bytes(self) -> int:
        """All owners together: what the device is seen to hold."""
        return sum(owner.num_bytes for owner in self.owners)

    @property
    def needed_bytes(self) -> int:
        """The same without the allocator's slack: with less, the phase runs out of memory."""
        return sum(owner.num_bytes for owner in self.owners if owner.kind != "slack")


class MeasuredPhase(Struct, frozen=True):
    """What a phase really needed. `peak_bytes`: of the whole device, contexts included; `allocated_bytes` and
    `reserved_bytes`: of torch's allocator in the training process, at the peak."""

    name: str
    peak_bytes: int
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    owners: tuple[Owner, ...] = ()
    error: str = ""

    @property
    def needed_bytes(self) -> int:
        """The peak without what the allocator held for nobody."""
        return self.peak_bytes - max(self.reserved_bytes - self.allocated_bytes, 0)


class MeasuredMemory(Struct, frozen=True):
    """What the phases of a run really needed. `kv`: blocks of the engine's cache, and tokens of a block; `host_bytes`:
    resident sizes of the largest rank and of the engine."""

    measured: tuple[MeasuredPhase, ...] = ()
    kv: dict[str, int] = {}
    host_bytes: dict[str, int] = {}
    notes: tuple[str, ...] = ()


class Change(Struct, frozen=True):
    """Something that would lower the peak: what to type, what the peak would be, what it costs in speed.

    `slowdown`: expected time of a step over today's (1.0: none).
    """

    title: str
    overrides: tuple[str, ...]
    peak_bytes: int
    fits: bool
    slowdown: float = 1.0
    host_bytes: int = 0


class Limits(Struct, frozen=True):
    """The largest settings that fit, all else as it is; 0: not even one, -1: does not apply."""

    micro_batch_size: int = -1
    max_tokens: int = -1
    memory_utilization: float = -1.0
    kv_tokens: int = -1
    """Tokens that the KV cache holds with the configured utilization."""
    concurrent_sequences: int = -1
    """Sequences of prompt and response at full length that it holds at a time; 0: the engine would not start."""


class MemoryProfile(Struct, frozen=True):
    """The prediction for one run on one kind of GPU."""

    gpu: str = ""
    gpu_bytes: int = 0
    usable_bytes: int = 0
    host_bytes: int = 0
    """RAM of a node; 0: not known."""
    num_nodes: int = 1
    gpus_per_node: int = 1
    parameters: dict[str, int] = {}
    """Of the whole model, by role."""
    exact: bool = True
    """False: an architecture that is not known, estimated from its declared sizes."""
    architecture: str = ""
    not_measured: str = ""
    """Whose runs the prediction was held against no measurement of; "": it was."""
    mean_tokens: int = 0
    """Prompt and response in the mean of a micro batch, up to which a run of packed rows fits; 0: at full length, or
    not at all."""
    longest_tokens: int = 0
    """Prompt and response at full length, which the prediction counts with."""
    phases: tuple[Phase, ...] = ()
    host_phases: tuple[Phase, ...] = ()
    limits: Limits = Limits()
    changes: tuple[Change, ...] = ()
    more_cache: Change | None = None
    """What gives the engine's KV cache enough sequences (`fits`), or the most it can get; None: it has enough, or
    nothing helps."""
    measured: tuple[MeasuredPhase, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def peak(self) -> Phase | None:
        """The fullest phase on a GPU."""
        return max(self.phases, key=lambda phase: phase.num_bytes, default=None)
