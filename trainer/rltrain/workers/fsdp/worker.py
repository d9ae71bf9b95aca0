"""One training rank: hosts actor, reference, critic and reward model. A plain class; one process holds one.

Every method is collective: it is called on all ranks at once, each with its own share, unless it says otherwise.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from transformers.utils import logging as transformers_logging

from rltrain.cluster.host import SHM_PREFIX
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.core.tensors import empty_cache
from rltrain.rewards.model import Conversation, RewardModel
from rltrain.workers.fsdp import actor, critic, held, models, recorder, sft, state, weights
from rltrain.workers.fsdp.build import FILES, Weights, reshard
from rltrain.workers.fsdp.capture import Capture, Captured, ended
from rltrain.workers.fsdp.export import export
from rltrain.workers.fsdp.forward import Policy, values
from rltrain.workers.fsdp.inference import alone, infer, recompute
from rltrain.workers.fsdp.mesh import Mesh
from rltrain.workers.fsdp.metrics import largest
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard
from rltrain.workers.fsdp.parts import Parts, parts
from rltrain.workers.fsdp.precision import to_dtype
from rltrain.workers.fsdp.rank import RankInfo, connect, derive_seed, disconnect, kernels, seed_everything
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.checksum import Piece
from rltrain.workers.sync.publisher import Publisher
from rltrain.workers.sync.transport import Descriptor

ModelName = Literal["actor", "ref", "critic", "reward_model"]


def _quiet_libraries() -> None:
    """Silence what they say of every model, and what is checked here besides (weights that are missing)."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # OPT's layers return views.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class TrainWorker:
    """The training side of a run, on one rank. CONFIG is resolved; WEIGHTS: where those of its models come from."""

    def __init__(self, config: RunConfig, info: RankInfo, weights: Weights = FILES) -> None:
        self._config = config
        self._info = info
        self._weights = weights
        self._models: dict[ModelName, ShardedModel] = {}
        self._mesh: Mesh | None = None
        self._data_ranks = 0
        self._sft: ShardedModel | None = None
        self._reward_model: RewardModel | None = None
        self._publisher: Publisher | None = None
        self._whole_logits: dict[str, str] = {}
        """By role, why its logits exist whole; "": they do not."""
        self._learnt = ""
        self._reference_changed = False
        """The reference is not what the model's directory holds, so a checkpoint must hold it."""

    def setup(self, total_steps: int) -> dict[str, Any]:
        """Meet the other ranks and load the models. TOTAL_STEPS: of the run, for the learning rates.

        Returns:
            Facts for the run's record.

        Raises:
            UserError: ranks do not meet, or a model cannot be loaded, or reads rows otherwise than alone.
        """
        config, info = self._config, self._info
        _quiet_libraries()
        recorder.turn_on(info.device_type)
        self._mesh = mesh = connect(info, config.actor_rollout_ref.nccl_timeout)
        self._data_ranks = mesh.data
        seed_everything(derive_seed(config.trainer.seed, "train", info.rank))
        self._add("actor", models.make_actor(config, info, mesh, total_steps, self._weights))
        models.prove_policy(self._models["actor"], config)
        self._whole_logits["actor"] = models.fuse_head(self._models["actor"], config)
        if config.needs_reference:
            self._add("ref", models.make_reference(config, info, mesh, self._weights))
            self._whole_logits["ref"] = models.fuse_head(self._models["ref"], config)
        if config.critic.enable:
            self._add("critic", models.make_critic(config, info, mesh, total_steps, self._weights))
            models.prove_critic(self._models["critic"], config)
        if config.reward_model.enable:
            sharded, self._reward_model = models.make_reward_model(config, info, mesh)
            self._add("reward_model", sharded)
        return self._facts()

    def _add(self, name: ModelName, sharded: ShardedModel) -> None:
        sharded.model.eval()
        sharded.leave()  # before the next one needs the room
        self._models[name] = sharded

    def _facts(self) -> dict[str, Any]:
        model = self._models["actor"].model
        return {
            "rank": self._info.rank,
            "world_size": self._info.world_size,
            "device": self._info.device,
            "device_name": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "backend": dist.get_backend(),
            **kernels(self._info.device),
            "torch": torch.__version__,
            "architecture": models.architecture(model),
            "whole_logits": self._whole_logits,
            "fused": sorted(self._models["actor"].fused),
            "num_parameters": {name: models.num_parameters(sharded.model) for name, sharded in self._models.items()},
        }

    # Reading

    def log_probs(self, shard: Shard) -> dict[str, Tensor]:
        """`old_log_probs` and `entropys` of SHARD's response tokens under the actor: float32 [B, R] on the host."""
        sharded = self._models["actor"]
        policy, size = self._policy(sharded), MicroSize.of_log_probs(self._config)

        def read(rows: Shard) -> dict[str, Tensor]:
            stats = policy(rows)
            assert stats.entropys is not None
            return {"old_log_probs": stats.log_probs, "entropys": stats.entropys}

        return infer(sharded, shard, size, read, ("old_log_probs", "entropys"))

    def ref_log_probs(self, shard: Shard) -> dict[str, Tensor]:
        """`ref_log_probs` of SHARD's response tokens under the reference: float32 [B, R] on the host."""
        sharded = self._models["ref"]
        policy, size = self._policy(sharded), MicroSize.of_reference(self._config)
        name = "ref_log_probs"
        return infer(sharded, shard, size, lambda rows: {name: policy(rows, "none").log_probs}, (name,))

    def values(self, shard: Shard) -> dict[str, Tensor]:
        """`values` before SHARD's response tokens: float32 [B, R] on the host."""
        sharded, section = self._models["critic"], self._config.critic
        packed = bool(section.model.use_remove_padding)
        size = MicroSize.of(section)
        return infer(sharded, shard, size, lambda rows: {"values": values(sharded.model, rows, packed)}, ("values",))

    def reward_scores(self, conversations: Sequence[Conversation]) -> tuple[list[float], int]:
        """The reward model's score of each conversation, and how many were cut to fit. May be given none."""
        assert self._reward_model is not None, "the config asks for no reward model"
        wanted = self._reward_model.num_batches(len(conversations))
        num_batches = int(largest(float(wanted), self._info.device))
        with self._models["reward_model"].in_use():
            return self._reward_model.score(conversations, num_batches)

    def recompute_log_probs(self, shard: Shard) -> dict[str, float]:
        """For the audit: SHARD's log-probabilities again, each row alone, against its `old_log_probs`.

        SHARD: a few rows (or none) whose `old_log_probs` this actor has given since its last update.
        """
        sharded = self._models["actor"]
        return recompute(sharded, self._policy(sharded), shard)

    def log_probs_alone(self, shard: Shard) -> Tensor:
        """The actor's log-probabilities of SHARD, each row read in a pass of its own: float32 [B, R] on the host."""
        sharded = self._models["actor"]
        return alone(sharded, self._policy(sharded), shard)

    def _policy(self, sharded: ShardedModel) -> Policy:
        return models.make_policy(sharded, self._config)

    # Learning

    def sft_step(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
        """One step of supervised training on this rank's (input_ids, labels) ROWS: of the warm-up, or of `rltrain sft`.

        A warm-up has an optimizer of its own, which `end_sft` forgets; without one the actor's own learns.
        """
        sharded = self._models["actor"]
        if self._config.sft_warmup.steps and self._sft is None:
            stepper = sft.sft_stepper(sharded, self._config)
            self._sft = ShardedModel("actor", sharded.model, sharded.fsdp, sharded.device, stepper)
        size = MicroSize.of(self._config.actor_rollout_ref.actor)
        return sft.sft_step(self._sft or sharded, self._policy(sharded), rows, size, self._data_ranks)

    def sft_loss(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
        """The loss of `sft_step` on ROWS, from which nothing is learnt."""
        sharded, size = self._models["actor"], MicroSize.of(self._config.actor_rollout_ref.actor)
        return sft.sft_loss(sharded, self._policy(sharded), rows, size)

    def update_actor(self, minis: Sequence[MiniBatch]) -> dict[str, float]:
        """Train the actor on MINIS (from `split.actor_minis`): metrics, equal on all ranks."""
        sharded, section = self._models["actor"], self._config.actor_rollout_ref.actor
        self._learnt = weights.rows_hash([mini.shard for mini in minis])
        correction = self._config.algorithm.rollout_correction
        bypass = correction if correction.bypass_mode else None
        return actor.update_actor(sharded, self._policy(sharded), section, minis, self._data_ranks, bypass)

    def update_and_read_actor(self, minis: Sequence[MiniBatch]) -> tuple[dict[str, float], dict[str, Tensor]]:
        """The same with the one of MINIS, which has no old log-probabilities; and what `log_probs` would have given."""
        sharded, section = self._models["actor"], self._config.actor_rollout_ref.actor
        [mini] = minis
        self._learnt = weights.rows_hash([mini.shard])
        return actor.update_and_read(sharded, self._policy(sharded), section, mini, self._data_ranks)

    def update_critic(self, minis: Sequence[MiniBatch]) -> dict[str, float]:
        """Train the critic on MINIS (from `split.critic_minis`): metrics, equal on all ranks."""
        return critic.update_critic(self._models["critic"], self._config.critic, minis, self._data_ranks)

    def end_sft(self) -> None:
        """Forget what trained in the warm-up, and make the reference, where there is one, what the actor is now."""
        self._sft, comm = None, self._models["actor"].gradient_comm
        if comm is not None:
            comm.take_s()  # belongs to no update
            comm.take_traffic()
        if "ref" not in self._models:
            return
        source, target = self._models["actor"].model, self._models["ref"].model
        pairs = zip(weights.named_weights(source), weights.named_weights(target), strict=True)
        with torch.no_grad():
            for (_, wanted), (_, stale) in pairs:
                weights.copy(wanted.detach(), stale)
        self._reference_changed = True

    def begin_capture(self, elements: int | None, names: Collection[str]) -> dict[str, Piece]:
        """Watch the updates to come, and keep what they begin with: ELEMENTS numbers of each tensor; None: all.

        Not collective.

        Returns:
            what `weight_pieces` gives of NAMES.
        """
        for sharded in (self._models[name] for name in self._learning()):
            sharded.watch = Capture(sharded, self._info.rank, elements)
        return self.weight_pieces(names)

    def end_capture(
        self, elements: int | None, names: Collection[str], rows: Sequence[int] | None
    ) -> tuple[dict[str, Captured], Parts | None, dict[str, Piece]]:
        """What was kept since `begin_capture`, by role; without one, what an update has left. Not collective.

        Returns:
            by role what was kept, of readings ROWS of the batch alone (None: all); the reference's weights, if there is
            one; what `weight_pieces` gives of NAMES.
        """
        found = {name: ended(self._models[name], elements, rows) for name in self._learning()}
        reference = None
        if "ref" in self._models:
            named = weights.named_weights(self._models["ref"].model)
            reference = parts({f"reference/{name}": tensor for name, tensor in named}, elements)
        return found, reference, self.weight_pieces(names)

    def _learning(self) -> list[ModelName]:
        return [name for name, sharded in self._models.items() if sharded.stepper is not None]

    # Weights

    def parameter_hash(self) -> str:
        """SHA-256 over the actor's shards on this rank. Not collective."""
        return weights.parameter_hash(self._models["actor"].model)

    def shard_hash(self) -> str:
        """SHA-256 of the tokens that this rank learnt from in the last update; "" before the first. Not collective."""
        return self._learnt

    def optimizer_steps(self) -> tuple[int, int]:
        """Steps of the actor's optimizer since the run began, before a resume too: counted here, and by itself.

        Not collective.
        """
        stepper = self._models["actor"].trainer()
        return stepper.num_steps, stepper.remembered_steps()

    def steps_by_role(self) -> dict[str, int]:
        """Optimizer steps of each role that learns since the run began, before a resume too. Not collective."""
        return {name: self._models[name].trainer().num_steps for name in self._learning()}

    def weight_manifest(self) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        """Name, shape and dtype of what `full_weights` yields, in its order. Not collective."""
        return weights.manifest(self._models["actor"].model, self._rollout_dtype())

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's weights under their Hugging Face names, whole, one at a time, in the rollout's dtype.

        All ranks must iterate to the end.
        """
        return weights.full_weights(self._models["actor"].model, self._rollout_dtype(), self._info.device)

    def connect_sync(self) -> Address | None:
        """Where engines meet this rank, for transports that broadcast."""
        return self._sending().connect()

    def publish_bucket(self, index: int) -> Descriptor | None:
        """Gather bucket INDEX and offer it."""
        return self._sending().publish_bucket(index)

    def finish_publish(self) -> dict[str, Piece]:
        """End a sync: free the buffers. With `trainer.verify_weight_sync` what `weight_pieces` gives, else nothing."""
        self._sending().finish_publish()
        return self.weight_pieces() if self._config.trainer.verify_weight_sync else {}

    def weight_pieces(self, names: Collection[str] | None = None) -> dict[str, Piece]:
        """This rank's share of the checksums of the actor's weights NAMES (None: of all), as engines should hold them.

        Not collective.
        """
        return held.pieces(self._models["actor"].model, self._rollout_dtype(), names)

    def _sending(self) -> Publisher:
        if self._publisher is None:
            info, manifest = self._info, self.weight_manifest()
            prefix = os.environ[SHM_PREFIX]
            self._publisher = Publisher(
                self._config, info.rank, info.device, info.master_addr, prefix, manifest, self.full_weights
            )
        return self._publisher

    def _rollout_dtype(self) -> torch.dtype:
        return to_dtype(self._config.actor_rollout_ref.rollout.dtype)

    # Memory and disk

    def free_cache(self) -> None:
        """Give what torch holds for later use back to the GPU. Not collective."""
        for sharded in self._models.values():
            reshard(sharded.model)
        empty_cache()

    def park(self) -> int:
        """Move all models and optimizers to the host, so that an engine can start; bytes there. Not collective."""
        num_bytes = sum(sharded.park() for sharded in self._models.values())
        empty_cache()
        return num_bytes

    def unpark(self) -> None:
        """Bring back what `park` moved. Not collective."""
        for sharded in self._models.values():
            sharded.unpark()

    def save(self, directory: str | Path) -> dict[str, str]:
        """Write a training checkpoint to DIRECTORY; SHA-256 of each file that this rank wrote, by path from there.

        Raises:
            UserError: it cannot be written.
        """
        return state.save(Path(directory), self._saved_models(self._reference_changed))

    def load(self, directory: str | Path) -> None:
        """Go on from the checkpoint in DIRECTORY.

        Raises:
            UserError: it is not whole, of another model, or without the reference that its warm-up had made.
        """
        found = state.saved_models(Path(directory))
        if "ref" in self._models and "ref" not in found and self._config.sft_warmup.steps:
            raise UserError(
                f"checkpoint {directory} holds no reference, as its run measured no KL, and the model that its warm-up "
                "had made is gone: take sft_warmup.steps=0 to measure KL from model.path"
            )
        self._reference_changed = "ref" in self._models and "ref" in found
        state.load(Path(directory), self._saved_models(self._reference_changed), self._config.trainer.seed)

    def load_actor(self, directory: str | Path) -> None:
        """Take the actor's weights from the checkpoint in DIRECTORY, to answer with or to export: nothing trains after.

        Raises:
            UserError: it is not whole, or of another model.
        """
        state.load_weights(Path(directory), self._models["actor"])

    def _saved_models(self, with_reference: bool) -> list[ShardedModel]:
        names: list[ModelName] = ["actor", "critic", *(["ref"] if with_reference else [])]
        return [self._models[name] for name in names if name in self._models]

    def export(self, directory: str | Path) -> None:
        """Write the actor to DIRECTORY in Hugging Face layout.

        Raises:
            UserError: it cannot be written.
        """
        export(Path(directory), self._models["actor"], self._config.actor_rollout_ref.model)

    def take_memory_peaks(self) -> dict[str, int]:
        """Bytes that torch's allocator held at most since last asked; nothing on a CPU. Not collective."""
        if not self._info.device.startswith("cuda"):
            return {}
        names = ("max_memory_allocated", "max_memory_reserved")
        peaks = {name: int(getattr(torch.cuda, name)(self._info.device)) for name in names}
        torch.cuda.reset_peak_memory_stats(self._info.device)
        return peaks

    def shutdown(self) -> None:
        """Leave the process group. Twice is no harm."""
        self._models.clear()
        disconnect()
