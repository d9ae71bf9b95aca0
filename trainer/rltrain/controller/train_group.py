"""The training ranks as one thing: set up, warm up, make room for the engine, save, load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltrain.cluster.calls import Call
from rltrain.cluster.groups import WorkerGroup
from rltrain.config.schema import RunConfig
from rltrain.core.metrics import Metrics
from rltrain.data.sft import Demonstration
from rltrain.workers.fsdp.split import deal

Encoded = tuple[Sequence[int], Sequence[int]]
"""Token ids and labels of one demonstration."""

STALL_REPORT_S = 60.0
"""What a call may take beyond `trainer.stall_timeout_s`, so that a stall is explained before it is given up."""


class TrainGroup:
    """All training ranks; every call goes to all of them at once."""

    def __init__(self, workers: WorkerGroup, config: RunConfig) -> None:
        self.workers = workers
        self._config = config
        self._deadline_s = config.trainer.stall_timeout_s + STALL_REPORT_S
        self.policy_version = 0
        """The last step that changed the actor's weights."""

    @property
    def data_ranks(self) -> int:
        """Ranks that have rows of their own (`Mesh.data`)."""
        return len(self.workers.slots)

    def begin_setup(self, total_steps: int) -> Call:
        """Begin to load the models; wait with `calls.gather`."""
        return self.workers.begin("setup", [(total_steps,)] * len(self.workers.slots))

    def call(self, method: str, *args: Any, doing: str) -> list[Any]:
        """Call METHOD on every rank with the same arguments."""
        return self.workers.all(method, *args, deadline_s=self._deadline_s, doing=doing)

    def sft_step(self, rows: Sequence[Demonstration]) -> Metrics:
        """One step of supervised training, ROWS dealt to the ranks; metrics `sft/…` of all ranks together."""
        dealt = self._dealt(rows)
        return self.workers.each("sft_step", dealt, deadline_s=self._deadline_s, doing="the supervised step")[0]

    def sft_loss(self, rows: Sequence[Demonstration]) -> Metrics:
        """Mean cross entropy of the learnt tokens of ROWS, and how many there are: `loss`, `loss_tokens`."""
        return self.workers.each("sft_loss", self._dealt(rows), deadline_s=self._deadline_s, doing="the held-out loss")[
            0
        ]

    def _dealt(self, rows: Sequence[Demonstration]) -> list[list[Encoded]]:
        lengths = [len(row.input_ids) for row in rows]
        ranks = deal(lengths, self.data_ranks, self._config.trainer.balance_batch)
        return [[(rows[place].input_ids, rows[place].labels) for place in places] for places in ranks]

    def end_sft(self) -> None:
        """End the supervised warm-up: the reference is what the actor is now."""
        self.call("end_sft", doing="ending the warm-up")

    def free_cache(self) -> None:
        """Where an engine shares the device, torch gives back what it holds for later use: the engine cannot see it."""
        if self._config.trainer.device == "cuda" and self._config.actor_rollout_ref.hybrid_engine:
            self.call("free_cache", doing="freeing memory for the engine")

    def park(self) -> int | None:
        """Where an engine shares the ranks' devices, move all models to the host; bytes there. None: it does not."""
        if not self._config.actor_rollout_ref.hybrid_engine:
            return None
        return sum(self.call("park", doing="moving the models off the devices"))

    def unpark(self) -> None:
        """Undo `park`."""
        if self._config.actor_rollout_ref.hybrid_engine:
            self.call("unpark", doing="moving the models back to the devices")

    def parameter_hashes(self) -> list[str]:
        """Of the actor's shards, by rank."""
        return self.call("parameter_hash", doing="hashing the parameters")

    def shard_hashes(self) -> list[str]:
        """Of the tokens that each rank learnt from in the last update, by rank."""
        return self.call("shard_hash", doing="asking what was learnt from")

    def optimizer_steps(self) -> tuple[int, int]:
        """Steps of the actor since the run began, and those that its optimizer's state counts (`TrainWorker`)."""
        return self.call("optimizer_steps", doing="counting optimizer steps")[0]

    def take_memory_peaks(self) -> list[dict[str, int]]:
        """Bytes at most since last asked, by rank."""
        return self.call("take_memory_peaks", doing="reading the peaks of memory")

    def export(self, directory: Path) -> None:
        """Write the actor to DIRECTORY in Hugging Face layout."""
        self.call("export", str(directory), doing="writing the model")

    def save(self, directory: Path) -> dict[str, str]:
        """Write the ranks' part of a checkpoint; SHA-256 of each file, by path from DIRECTORY."""
        ranks: list[dict[str, str]] = self.call("save", str(directory), doing="saving the checkpoint")
        return {name: digest for rank in ranks for name, digest in rank.items()}

    def load(self, directory: Path, step: int) -> None:
        """Read the ranks' part of the checkpoint of STEP."""
        self.call("load", str(directory), doing="loading the checkpoint")
        self.policy_version = step

    def load_actor(self, directory: Path) -> None:
        """Read the actor's weights of a checkpoint, to answer with: nothing trains after."""
        self.call("load_actor", str(directory), doing="loading the actor's weights")

    def shutdown(self) -> None:
        """End the process groups in order."""
        self.call("shutdown", doing="ending the process groups")
