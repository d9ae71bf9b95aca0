"""The measuring plug-in `memory` of the doctor: runs every phase of a run on this machine's GPUs, with random weights.

The engine and the training ranks run one after the other, each with the device to itself, and what one holds while the
other works is added: memory adds up, and a measurement needs no weight to travel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import MeasuredMemory, MeasuredPhase, Owner
from rltrain.cluster import allocator
from rltrain.config.engines import ENGINES
from rltrain.core import nvml
from rltrain.core.errors import UserError
from rltrain.measure.memory.as_config import unsupported
from rltrain.measure.memory.child import ANSWER_FD
from rltrain.measure.memory.engine import EngineRequest
from rltrain.measure.memory.rank import RankRequest
from rltrain.measure.report import Tell
from rltrain.workers.fsdp.rank import free_port

RANKS_S = 900
ENGINE_S = 900
_MAX_SEQUENCES = 512
_MAX_TOKENS = 64


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The measured phases of the run in REQUEST.

    Args:
        request: `run`, a `ConfigFacts` as plain data; optionally `engine` (False: leave the rollout engine out).
        tell: called with `{"stage": …}` before each part.

    Returns:
        `rlcheck.facts.memory.MeasuredMemory` as plain data.

    Raises:
        UserError: the run cannot be measured here, and why.
    """
    facts = msgspec.convert(request["run"], ConfigFacts)
    gpus = _visible_gpus()
    world = facts.spec.gpus_per_node * facts.spec.nodes
    _refuse(facts, len(gpus), world)
    with tempfile.TemporaryDirectory(prefix="rltrain-memory-") as scratch:
        directories = _directories(facts, Path(scratch))
        engine = None
        if request.get("engine", True) and _has_cache(facts.spec.rollout.name):
            tell({"stage": "rollout engine"})
            engine = _engine(facts, directories, gpus)
        tell({"stage": "training ranks"})
        asleep = 0 if engine is None else engine.asleep_bytes
        ranks, host_bytes = _ranks(facts, directories, gpus[:world], asleep)
    found = MeasuredMemory(
        measured=tuple(together(ranks, engine)),
        kv=engine.kv if engine else {},
        host_bytes={"rank": host_bytes, "engine": engine.host_bytes if engine else 0},
    )
    return msgspec.to_builtins(found)


@dataclass(frozen=True)
class EngineMemory:
    """What the engine's first GPU held, less what it held before."""

    awake_bytes: int
    asleep_bytes: int
    syncing_bytes: int
    """With its weights awake and no cache."""
    kv: dict[str, int]
    host_bytes: int


def together(ranks: Sequence[MeasuredPhase], engine: EngineMemory | None) -> list[MeasuredPhase]:
    """The phases as a run has them: training beside the sleeping engine, rollout beside idle training ranks."""
    if engine is None:
        return list(ranks)
    idle = next((phase for phase in ranks if phase.name == "idle"), MeasuredPhase(name="idle", peak_bytes=0))
    found: list[MeasuredPhase] = []
    for phase in ranks:
        size = engine.syncing_bytes if phase.name == "weight sync" else engine.asleep_bytes
        beside = Owner(kind="engine", role="rollout", num_bytes=size)
        more = {"peak_bytes": phase.peak_bytes + size, "owners": (*phase.owners, beside)}
        found.append(phase if phase.error else msgspec.structs.replace(phase, **more))
    awake = Owner(kind="engine", role="rollout", num_bytes=engine.awake_bytes)
    peak = engine.awake_bytes + idle.peak_bytes
    found.append(MeasuredPhase(name="rollout", peak_bytes=peak, owners=(*idle.owners, awake)))
    return found


def _refuse(facts: ConfigFacts, num_gpus: int, world: int) -> None:
    if problem := unsupported(facts.spec):
        raise UserError(problem)
    if num_gpus < world:
        raise UserError(
            f"the run trains on {world} GPUs and this machine shows {num_gpus}: measure it where they are, or with "
            f"--gpus-per-node {num_gpus} --nodes 1 for the part of one GPU"
        )
    actor = facts.models.get("actor")
    if actor is None or actor.value is None:
        raise UserError("the sizes of the actor's model are not known: name its directory, or give --model-shape")


def _visible_gpus() -> list[str]:
    try:
        return nvml.visible()
    except nvml.NvmlError as error:
        raise UserError(f"--measure needs a GPU, and NVML has none: {error}") from None


def _directories(facts: ConfigFacts, scratch: Path) -> dict[str, str]:
    """One directory with a config.json for each model: enough where no weights are read."""
    found: dict[str, str] = {}
    for role, model in facts.models.items():
        if model.value is not None:
            directory = scratch / role
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(model.value.sizes), encoding="utf-8")
            found[role] = str(directory)
    found.setdefault("critic", found["actor"])
    return found


def _engine(facts: ConfigFacts, directories: dict[str, str], gpus: Sequence[str]) -> EngineMemory:
    spec = facts.spec
    size = spec.rollout.tensor_parallel
    before = nvml.used_bytes(nvml.handle(gpus[0]))
    request = EngineRequest(
        spec=msgspec.structs.replace(
            spec, rollout=msgspec.structs.replace(spec.rollout, engine_kwargs=_with_tokenizer_off(facts))
        ),
        directories=directories,
        world_size=max(spec.gpus_per_node, size),
        num_sequences=min(spec.rollout.max_seqs, spec.data.train_batch_size * spec.rollout.n, _MAX_SEQUENCES),
        max_tokens=min(spec.data.max_response_length, _MAX_TOKENS),
    )
    [answer] = _processes("engine", [msgspec.json.encode(request)], [",".join(gpus[:size])], ENGINE_S)
    phases = {phase["name"]: int(phase["peak_bytes"]) for phase in answer["phases"]}
    awake = phases["rollout"]
    asleep, syncing = phases.get("asleep", awake), phases.get("weights awake", awake)
    return EngineMemory(awake - before, asleep - before, syncing - before, answer["kv"], answer["host_bytes"])


def _has_cache(name: str) -> bool:
    engine = ENGINES.get(name)
    return engine is not None and engine.has_kv_cache


def _with_tokenizer_off(facts: ConfigFacts) -> dict[str, Any]:
    """Engine arguments for a directory that holds no tokenizer."""
    engine = ENGINES[facts.spec.rollout.name]
    mine: dict[str, Any] = dict(facts.spec.rollout.engine_kwargs.get(engine.name, {}))
    return {engine.name: {**mine, **engine.without_tokenizer}}


def _ranks(
    facts: ConfigFacts, directories: dict[str, str], gpus: Sequence[str], asleep: int
) -> tuple[list[MeasuredPhase], int]:
    """The phases of the rank that needs most, and the most host memory of a rank."""
    actor = facts.models["actor"].value
    assert actor is not None
    port = free_port()
    requests = [
        msgspec.json.encode(
            RankRequest(
                spec=facts.spec,
                directories=directories,
                vocab_size=int(actor.sizes["vocab_size"]),
                rank=rank,
                world_size=len(gpus),
                port=port,
                limit_bytes=nvml.total_bytes(nvml.handle(gpus[rank])) - asleep if asleep else 0,
            )
        )
        for rank in range(len(gpus))
    ]
    answers = _processes("rank", requests, gpus, RANKS_S)
    ranks = [msgspec.convert(answer["phases"], list[MeasuredPhase]) for answer in answers]
    fullest = max(ranks, key=lambda phases: max(phase.peak_bytes for phase in phases))
    return fullest, max(int(answer.get("host_bytes", 0)) for answer in answers)


def _processes(module: str, requests: Sequence[bytes], devices: Sequence[str], deadline_s: float) -> list[Any]:
    """Answers of one process of `rltrain.measure.memory.MODULE` for each of REQUESTS, on its DEVICES."""
    started: list[tuple[subprocess.Popen[bytes], int]] = []
    try:
        for request, device in zip(requests, devices, strict=True):
            read, write = os.pipe()
            environ = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": device,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                ANSWER_FD: str(write),
            }
            if module == "rank":
                environ = {**allocator.environ(os.environ), **environ}
            command = [sys.executable, "-m", f"rltrain.measure.memory.{module}"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=sys.stderr, env=environ, pass_fds=(write,)
            )
            os.close(write)
            assert process.stdin is not None
            process.stdin.write(request)
            process.stdin.close()
            started.append((process, read))
        return _answers(module, started, time.monotonic() + deadline_s)
    finally:
        for process, read in started:
            os.close(read)
            process.kill()
            process.wait()


def _answers(module: str, started: Sequence[tuple[subprocess.Popen[bytes], int]], deadline: float) -> list[Any]:
    found: list[Any] = []
    for process, read in started:
        try:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise UserError(f"the {module} of the measurement did not end in its time") from None
        with os.fdopen(os.dup(read), "rb") as answer:
            line = answer.read()
        if not line:
            raise UserError(f"the {module} of the measurement ended with exit code {code}; what it said is above")
        document = json.loads(line)
        if "error" in document:
            raise UserError(f"the {module} of the measurement: {document['error']}")
        found.append(document)
    return found
