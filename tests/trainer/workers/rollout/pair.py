"""Real FSDP2 ranks and a real engine, each in a process of its own, and the sync between them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from rltrain.cluster.host import SHM_PREFIX
from rltrain.config.resolve import Machine, resolve
from rltrain.config.schema import RunConfig
from rltrain.controller.assemble import answered
from rltrain.core.batch import Sample
from rltrain.workers.fsdp.rank import RankInfo
from rltrain.workers.fsdp.split import shards
from rltrain.workers.rollout.protocol import Request, Sampling
from rltrain.workers.sync import WeightSync, checksum
from tests.trainer.workers.rollout.compare import PLAIN
from tests.trainer.workers.rollout.hosted import ANSWER_S, Hosted, HostedGroup

TEMPERATURE = 0.7
PREFIX = f"rltrain-test-crew-{os.getpid()}-"
SAMPLING = replace(PLAIN, temperature=TEMPERATURE)


def crew_config(
    directory: Path, *, device: str = "cpu", ranks: int = 1, gpus: int = 0, parts: dict[str, Any], **rollout: Any
) -> RunConfig:
    """A resolved config of RANKS training ranks and one engine. PARTS: keys of `actor_rollout_ref`."""
    micro = {"log_prob_micro_batch_size_per_gpu": 4}
    own = {"name": "vllm", "temperature": TEMPERATURE, "max_model_len": 192, "max_num_seqs": 16, "num_replicas": 1}
    config = RunConfig.model_validate(
        {
            "actor_rollout_ref": {
                "model": {"path": str(directory)},
                "actor": {"ppo_micro_batch_size_per_gpu": 4, **parts.pop("actor", {})},
                "rollout": own | micro | rollout,
                "nccl_timeout": 90,
                **parts,
            },
            "algorithm": {"adv_estimator": "grpo"},
            "data": {"max_prompt_length": 170, "max_response_length": 16},
            "trainer": {"device": device, "num_cpu_ranks": ranks, "n_gpus_per_node": ranks, "seed": 7}
            | {"verify_weight_sync": True},
        }
    )
    return resolve(config, Machine(device="cuda" if device == "cuda" else "cpu", num_gpus=gpus, num_cpus=2))


def two_rank_config(directory: Path, **rollout: Any) -> RunConfig:
    """Of two CPU ranks, all in float32."""
    parts = {"actor": {"fsdp_config": {"dtype": "float32"}}}
    return crew_config(directory, ranks=2, parts=parts, dtype="float32", **rollout)


@dataclass
class Pair:
    """Training ranks and one engine of a run."""

    config: RunConfig
    ranks: HostedGroup
    engine: Hosted
    sync: WeightSync

    def differences(self, requests: Sequence[Request], sampling: Sampling = SAMPLING) -> tuple[float, float]:
        """Mean |log p - log p'| and |p - p'| of sampled tokens, between the engine and the actor.

        The batch is put together, dealt and read as a run does it.
        """
        completions = self.engine.call("generate", requests, sampling)
        tokenizer = AutoTokenizer.from_pretrained(self.config.actor_rollout_ref.model.path)
        samples = [Sample(str(row), row, prompt_ids=one.prompt_ids) for row, one in enumerate(requests)]
        batch = answered(samples, completions, tokenizer).bare()
        dealt = shards(batch, self.config, len(self.ranks.members))
        answers = self.ranks.each("log_probs", [fields for _, fields in dealt])
        actor = torch.zeros(batch["rollout_log_probs"].shape)
        for (rows, _), answer in zip(dealt, answers, strict=True):
            actor[rows] = answer["old_log_probs"]
        mask = batch["response_mask"]
        mine, theirs = actor[mask].double(), batch["rollout_log_probs"][mask].double()
        return (mine - theirs).abs().mean().item(), (mine.exp() - theirs.exp()).abs().mean().item()

    def published(self) -> dict[str, str]:
        """Checksums of the actor's weights, as the engine should hold them."""
        return self.ranks.apply(weight_checksums)[0]

    def change(self, seed: int) -> None:
        """Other weights in the actor."""
        self.ranks.apply(perturb, seed)


@contextmanager
def crew(
    config: RunConfig,
    rank_environs: Sequence[dict[str, str]],
    engine_environ: dict[str, str],
    answer_s: float = ANSWER_S,
) -> Iterator[Pair]:
    """A crew for CONFIG: a rank for each of RANK_ENVIRONS, and an engine; ended in order, or killed if one failed."""
    engine = Hosted("rltrain.measure.drift.workers:DriftEngineWorker", engine_environ, answer_s)
    ranks = rank_processes(rank_environs, answer_s)
    try:
        yield start_crew(config, ranks, engine)
        assert [*ranks.end(), engine.end()] == [0] * (len(ranks.members) + 1)
    finally:
        ranks.kill()
        engine.kill()


def rank_processes(environs: Sequence[dict[str, str]], answer_s: float = ANSWER_S) -> HostedGroup:
    """Processes for training ranks, with nothing in them yet."""
    return HostedGroup(
        *(
            Hosted("rltrain.measure.drift.workers:DriftTrainWorker", {SHM_PREFIX: PREFIX, **environ}, answer_s)
            for environ in environs
        )
    )


def start_crew(config: RunConfig, ranks: HostedGroup, engine: Hosted) -> Pair:
    """Make the workers of CONFIG in these processes, in place of those that are there."""
    engine.build(config, 0)
    # On a GPU the engine goes first, and to sleep: it measures what memory is free.
    engine.call("start")
    engine.call("sleep")
    port, device = _free_port(), "cuda:0" if config.trainer.device == "cuda" else "cpu"
    for number, rank in enumerate(ranks.members):
        rank.begin("__build__", config, RankInfo(number, len(ranks.members), "127.0.0.1", port, device))
    for rank in ranks.members:
        rank.finish()
    ranks.all("setup", 10)
    sync = WeightSync(ranks, HostedGroup(engine), ANSWER_S)
    sync.connect()
    return Pair(config, ranks, engine, sync)


@torch.no_grad()
def perturb(rank: Any, seed: int) -> None:
    """Scale each weight of the rank's shards by a random factor near 1."""
    generator = torch.Generator().manual_seed(1000 * seed + rank._info.rank)
    for parameter in rank._models["actor"].model.parameters():
        shard = parameter.to_local()
        shard.mul_(1 + 0.3 * torch.randn(shard.shape, generator=generator).to(shard))


def weight_checksums(rank: Any) -> dict[str, str]:
    """Checksums of the rank's whole weights (collective)."""
    return {name: checksum(tensor) for name, tensor in rank.full_weights()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
