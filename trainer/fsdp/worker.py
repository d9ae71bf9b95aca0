"""One training rank: hosts actor, reference, critic and reward model. A plain class; one process holds one.

Every method is collective: it is called on all ranks at once, each with its own share, unless it says otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers.utils import logging as transformers_logging

from trainer.config.schema import RunConfig
from trainer.errors import UserError
from trainer.fsdp import actor, critic, roles, sft, state, weights
from trainer.fsdp.build import FILES, Weights, reshard
from trainer.fsdp.export import export
from trainer.fsdp.forward import Policy, values
from trainer.fsdp.inference import infer, recompute
from trainer.fsdp.metrics import largest
from trainer.fsdp.micro import MicroSize, MiniBatch, Shard
from trainer.fsdp.optim import Stepper
from trainer.fsdp.precision import to_dtype
from trainer.fsdp.rank import RankInfo, connect, derive_seed, disconnect, seed_everything
from trainer.fsdp.reread import Reading, reread
from trainer.fsdp.role import Role
from trainer.fsdp.trace import trace
from trainer.rewards.model import Conversation, RewardModel
from trainer.sync.checksum import checksum

RoleName = Literal["actor", "ref", "critic", "reward_model"]


def _quiet_libraries() -> None:
    """Silence what they say of every model, and what is checked here besides (weights that are missing)."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # OPT's layers return views; nothing here works on them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class TrainWorker:
    """The training side of a run, on one rank. CONFIG is resolved; WEIGHTS: where those of its models come from."""

    def __init__(self, config: RunConfig, info: RankInfo, weights: Weights = FILES) -> None:
        self._config = config
        self._info = info
        self._weights = weights
        self._roles: dict[RoleName, Role] = {}
        self._mesh: DeviceMesh | None = None
        self._sft: tuple[Role, Stepper] | None = None
        self._reward_model: RewardModel | None = None
        self._learnt = ""
        self._reference_changed = False
        """The reference is not what the model's directory holds, so a checkpoint must hold it."""

    def setup(self, total_steps: int) -> dict[str, Any]:
        """Meet the other ranks and load the models. TOTAL_STEPS: of the run, for the learning rates.

        Returns:
            Facts for the run's record.

        Raises:
            UserError: ranks do not meet, or a model cannot be loaded.
        """
        config, info = self._config, self._info
        _quiet_libraries()
        self._mesh = mesh = connect(info, config.actor_rollout_ref.nccl_timeout)
        seed_everything(derive_seed(config.trainer.seed, "train", info.rank))
        self._add("actor", roles.make_actor(config, info, mesh, total_steps, self._weights))
        if config.needs_reference:
            self._add("ref", roles.make_reference(config, info, mesh, self._weights))
        if config.critic.enable:
            self._add("critic", roles.make_critic(config, info, mesh, total_steps, self._weights))
        if config.reward_model.enable:
            role, self._reward_model = roles.make_reward_model(config, info, mesh)
            self._add("reward_model", role)
        return self._facts()

    def _add(self, name: RoleName, role: Role) -> None:
        role.model.eval()
        role.leave()  # before the next one needs the room
        self._roles[name] = role

    def _facts(self) -> dict[str, Any]:
        model = self._roles["actor"].model
        return {
            "rank": self._info.rank,
            "world_size": self._info.world_size,
            "device": self._info.device,
            "backend": dist.get_backend(),
            "torch": torch.__version__,
            "architecture": roles.architecture(model),
            "num_parameters": {name: roles.num_parameters(role.model) for name, role in self._roles.items()},
        }

    # Reading

    def log_probs(self, shard: Shard) -> dict[str, Tensor]:
        """`old_log_probs` and `entropys` of SHARD's response tokens under the actor: float32 [B, R] on the host."""
        role = self._roles["actor"]
        policy, size = self._policy(role), MicroSize.of_log_probs(self._config)

        def read(rows: Shard) -> dict[str, Tensor]:
            stats = policy(rows)
            return {"old_log_probs": stats.log_probs, "entropys": stats.entropys}

        return infer(role, shard, size, read, ("old_log_probs", "entropys"))

    def ref_log_probs(self, shard: Shard) -> dict[str, Tensor]:
        """`ref_log_probs` of SHARD's response tokens under the reference: float32 [B, R] on the host."""
        role = self._roles["ref"]
        policy, size = self._policy(role), MicroSize.of_reference(self._config)
        return infer(role, shard, size, lambda rows: {"ref_log_probs": policy(rows).log_probs}, ("ref_log_probs",))

    def values(self, shard: Shard) -> dict[str, Tensor]:
        """`values` before SHARD's response tokens: float32 [B, R] on the host."""
        role, section = self._roles["critic"], self._config.critic
        packed = section.model.use_remove_padding
        size = MicroSize.of(section)
        return infer(role, shard, size, lambda rows: {"values": values(role.model, rows, packed)}, ("values",))

    def reward_scores(self, conversations: Sequence[Conversation]) -> tuple[list[float], int]:
        """The reward model's score of each conversation, and how many were cut to fit. May be given none."""
        assert self._reward_model is not None, "the config asks for no reward model"
        wanted = self._reward_model.num_batches(len(conversations))
        num_batches = int(largest(float(wanted), self._info.device))
        with self._roles["reward_model"].in_use():
            return self._reward_model.score(conversations, num_batches)

    def recompute_log_probs(self, shard: Shard) -> dict[str, float]:
        """For the audit: SHARD's log-probabilities again, each row alone, against its `old_log_probs`.

        SHARD: a few rows (or none) whose `old_log_probs` this actor has given since its last update.
        """
        role = self._roles["actor"]
        return recompute(role, self._policy(role), shard)

    def reread_log_probs(self, asked: tuple[Shard, Reading]) -> dict[str, Tensor]:
        """For the doctor: log-probabilities of a shard's response tokens, read otherwise (`reread.reread`)."""
        role, (shard, reading) = self._roles["actor"], asked
        return reread(role, self._policy(role), MicroSize.of_log_probs(self._config), shard, reading)

    def trace(self, token_ids: Sequence[int], file: str, given: str | None = None) -> None:
        """Write what each of the actor's operations gives on TOKEN_IDS to FILE, on rank 0 (`trace.trace`)."""
        role, is_first = self._roles["actor"], self._info.rank == 0
        out, others = (Path(name) if is_first and name is not None else None for name in (file, given))
        trace(role, self._policy(role), token_ids, out, others)

    def _policy(self, role: Role) -> Policy:
        return roles.make_policy(role, self._config)

    # Learning

    def sft_step(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
        """One step of the supervised warm-up on this rank's (input_ids, labels) ROWS."""
        role = self._roles["actor"]
        if self._sft is None:
            stepper = sft.sft_stepper(role, self._config)
            self._sft = (Role("actor", role.model, role.fsdp, role.device, stepper), stepper)
        size = MicroSize.of(self._config.actor_rollout_ref.actor)
        return sft.sft_step(self._sft[0], self._policy(role), rows, size, self._info.world_size)

    def update_actor(self, minis: Sequence[MiniBatch]) -> dict[str, float]:
        """Train the actor on MINIS (from `split.actor_minis`): metrics, equal on all ranks."""
        role, section = self._roles["actor"], self._config.actor_rollout_ref.actor
        self._learnt = weights.rows_hash([mini.shard for mini in minis])
        return actor.update_actor(role, self._policy(role), section, minis, self._info.world_size)

    def update_critic(self, minis: Sequence[MiniBatch]) -> dict[str, float]:
        """Train the critic on MINIS (from `split.critic_minis`): metrics, equal on all ranks."""
        return critic.update_critic(self._roles["critic"], self._config.critic, minis, self._info.world_size)

    def end_sft(self) -> None:
        """Forget what trained in the warm-up, and make the reference, where there is one, what the actor is now."""
        self._sft, comm = None, self._roles["actor"].gradient_comm
        if comm is not None:
            comm.take_s()  # belongs to no update
        if "ref" not in self._roles:
            return
        source, target = self._roles["actor"].model, self._roles["ref"].model
        pairs = zip(weights.named_weights(source), weights.named_weights(target), strict=True)
        with torch.no_grad():
            for (_, wanted), (_, stale) in pairs:
                weights.local(stale).copy_(weights.local(wanted))
        self._reference_changed = True

    # Weights

    def parameter_hash(self) -> str:
        """SHA-256 over the actor's shards on this rank. Not collective."""
        return weights.parameter_hash(self._roles["actor"].model)

    def shard_hash(self) -> str:
        """SHA-256 of the tokens that this rank learnt from in the last update; "" before the first. Not collective."""
        return self._learnt

    def optimizer_steps(self) -> int:
        """Steps that the actor's optimizer has taken since the run began, before a resume too. Not collective."""
        return self._roles["actor"].trainer().num_steps

    def weight_checksums(self) -> dict[str, str]:
        """For the doctor: checksum by name of what `full_weights` yields, on rank 0; empty elsewhere."""
        found = {name: checksum(tensor) if self._info.rank == 0 else "" for name, tensor in self.full_weights()}
        return found if self._info.rank == 0 else {}

    def scale_weights(self, factor: float) -> None:
        """For the doctor: multiply the actor's weights by FACTOR; a power of two can be taken back. Not collective."""
        model = self._roles["actor"].model
        reshard(model)  # a pass that failed has left parameters gathered
        weights.scale(model, factor)

    def weight_manifest(self) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        """Name, shape and dtype of what `full_weights` yields, in its order. Not collective."""
        return weights.manifest(self._roles["actor"].model, self._rollout_dtype())

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's weights under their Hugging Face names, whole, one at a time, in the rollout's dtype.

        All ranks must iterate to the end.
        """
        return weights.full_weights(self._roles["actor"].model, self._rollout_dtype(), self._info.device)

    def _rollout_dtype(self) -> torch.dtype:
        return to_dtype(self._config.actor_rollout_ref.rollout.dtype)

    # Memory and disk

    def free_cache(self) -> None:
        """Give what torch holds for later use back to the GPU. Not collective."""
        for role in self._roles.values():
            reshard(role.model)
        torch.cuda.empty_cache()

    def save(self, directory: str | Path) -> None:
        """Write a training checkpoint to DIRECTORY.

        Raises:
            UserError: it cannot be written.
        """
        state.save(Path(directory), self._saved_roles(self._reference_changed))

    def load(self, directory: str | Path) -> None:
        """Go on from the checkpoint in DIRECTORY.

        Raises:
            UserError: it is not whole, of another model, or without the reference that its warm-up had made.
        """
        found = state.saved_roles(Path(directory))
        if "ref" in self._roles and "ref" not in found and self._config.sft_warmup.steps:
            raise UserError(
                f"checkpoint {directory} holds no reference, as its run measured no KL, and the model that its warm-up "
                "had made is gone: take sft_warmup.steps=0 to measure KL from model.path"
            )
        self._reference_changed = "ref" in self._roles and "ref" in found
        state.load(Path(directory), self._saved_roles(self._reference_changed), self._config.trainer.seed)

    def load_actor(self, directory: str | Path) -> None:
        """Take the actor's weights from the checkpoint in DIRECTORY, to answer with or to export: nothing trains after.

        Raises:
            UserError: it is not whole, or of another model.
        """
        state.load_weights(Path(directory), self._roles["actor"])

    def _saved_roles(self, with_reference: bool) -> list[Role]:
        names: list[RoleName] = ["actor", "critic", *(["ref"] if with_reference else [])]
        return [self._roles[name] for name in names if name in self._roles]

    def export(self, directory: str | Path) -> None:
        """Write the actor to DIRECTORY in Hugging Face layout.

        Raises:
            UserError: it cannot be written.
        """
        export(Path(directory), self._roles["actor"], self._config.actor_rollout_ref.model)

    def take_memory_peaks(self) -> dict[str, int]:
        """Bytes that torch's allocator held at most since last asked; nothing on a CPU. Not collective."""
        if not self._info.device.startswith("cuda"):
            return {}
        peaks = {
            "max_memory_allocated": torch.cuda.max_memory_allocated(self._info.device),
            "max_memory_reserved": torch.cuda.max_memory_reserved(self._info.device),
        }
        torch.cuda.reset_peak_memory_stats(self._info.device)
        return peaks

    def shutdown(self) -> None:
        """Leave the process group. Twice is no harm."""
        self._roles.clear()
        disconnect()
