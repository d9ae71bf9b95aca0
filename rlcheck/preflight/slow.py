"""Links that start something: tasks in a cluster, ranks, an engine, a step. Each with deadlines; nothing is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

import msgspec

from rlcheck.diagnose.engine_error import known_as
from rlcheck.errors import UserError
from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.reach import WantedRun
from rlcheck.facts.rehearsal import RehearsalFacts
from rlcheck.facts.rollout import StageTime
from rlcheck.facts.smoke import SmokeFacts
from rlcheck.measure.cluster import boards
from rlcheck.measure.cluster.boards import Awaited
from rlcheck.measure.cluster.survey import survey
from rlcheck.measure.collectives.measuring import measure
from rlcheck.measure.collectives.plan import Request as Collectives
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import STAGE_S, examine_engine, failure_of, is_readable
from rlcheck.measure.step import HEAD, prove
from rlcheck.measure.step import STAGE_S as PROOF_S
from rlcheck.preflight.links import several_nodes
from rlcheck.preflight.state import Request, State, known_head

S = TypeVar("S", SmokeFacts, RehearsalFacts)
_CLUSTER_S = 28.0
_SURVEY_S = 10.0
_STEP_S = 30.0
"""Deadline of one step of the collectives, as for `rlcheck nccl`."""
_SILENCE_S = 600.0
_SMOKE_S = 3600.0
"""A large model is read from a slow disk in many minutes; a run says something at each of its stages."""


def network(request: Request, state: State, awaited: Awaited) -> None:
    """The way to the head and the cluster behind it, where the run has one; of a single machine the probes know all."""
    head, port = _head(request, state.facts)
    if not head:
        if several_nodes(request.run):
            state.notes.append(
                f"the run has {request.run.spec.nodes} nodes and no Ray cluster is known here: nothing was asked "
                "between them; give --head-ip"
            )
        return
    awaited.on(f"{head}:{port}")
    spec = request.run.spec
    wanted = WantedRun(nodes=spec.nodes, gpus_per_node=spec.gpus_per_node if spec.device == "cuda" else 0)
    found = boards.reach_of(request.context, state.facts, head, port, request.timeout_s, wanted)
    state.learn(reach=made_safe("reach", known(found)))
    state.facts = boards.survey_ray(request.context, state.facts, request.context.python, awaited, _CLUSTER_S)


def _head(request: Request, facts: Facts) -> tuple[str, int]:
    """The head to examine, and its port; ("", 0) where the run needs none."""
    address = request.run.spec.ray_address
    given = request.head_ip or (address if address not in ("", "auto", "local") else "")
    if not given and (several_nodes(request.run) or address == "auto"):
        given = known_head(facts, request.context.environ)
    if not given:
        return "", 0
    try:
        return boards.parse_head(given, request.port)
    except UserError:
        if given == request.head_ip:
            raise
        return "", 0


def collectives(request: Request, state: State, awaited: Awaited) -> None:
    """Real collectives, few and small: between the nodes of the cluster, else on this machine alone."""
    python = state.facts.python.value
    if python is not None and "torch" not in {one.name for one in python.distributions}:
        state.learn(collectives=absent("torch is not installed in the examined Python"))
        return
    head, port = _head(request, state.facts)
    try:
        board, launcher = boards.open_machines(head, port or None, "", request.context, state.facts)
        with board:
            awaited.on("machines to answer")
            found = survey(board, via=launcher, worker_ports=None, deadline_s=_SURVEY_S, progress=awaited.on_names)
            state.others += boards.others(board, found, state.facts, awaited)
            plan = Collectives(launcher=launcher, quick=True, step_timeout_s=request.limit_s(_STEP_S))
            done = measure(board, plan, awaited.on_names)
    except UserError as error:
        state.learn(collectives=missing(MissingKind.ERROR, str(error)))
        return
    state.learn(collectives=known(done))
    if launcher != "local" and state.facts.cluster.value is None:
        state.learn(cluster=known(found))


def rollout(request: Request, state: State, awaited: Awaited) -> None:
    """The engine of the config, started and tried."""
    found = examine_engine(
        request.run,
        request.source,
        request.overrides,
        _below(state, "rollout"),
        python=request.context.python,
        start_s=request.limit_s(request.start_s),
        stage_s=request.limit_s(STAGE_S),
        on_stage=lambda stage: awaited.on(f"the engine: {stage}"),
    )
    state.learn(rollout=known(found))


def smoke(request: Request, state: State, awaited: Awaited) -> None:
    """One training step. Only a trainer can make one, and rltrain makes those of its own configs."""
    if request.run.framework != "rltrain":
        reason = f"only a trainer makes a step: start {request.run.framework} itself with {_one_step(request)}"
        state.learn(smoke=absent(reason))
        return
    if not is_readable(request.source):
        state.learn(smoke=absent("the step needs a recipe or a YAML file; a pasted line or a script has none"))
        return
    directory = _below(state, "smoke")
    facts = _made(request, awaited, "smoke", directory, "one training step", SmokeFacts)
    state.learn(smoke=made_safe("smoke", known(facts)))
    _prove(request, state, Path(directory) / "run" / "capsules", awaited)


def rehearse(request: Request, state: State, awaited: Awaited) -> None:
    """A kill and a resume. Only a trainer can be killed, and rltrain runs its own configs."""
    if request.run.framework != "rltrain":
        reason = (
            f"rlcheck starts rltrain alone; the rules CFG071 to CFG074 judge what {request.run.framework} saves and "
            "resumes, and rlcheck resume its checkpoints once there are some"
        )
        state.learn(rehearsal=absent(reason))
        return
    if not is_readable(request.source):
        state.learn(rehearsal=absent("a rehearsal needs a recipe or a YAML file; a pasted line or a script has none"))
        return
    facts = _made(request, awaited, "rehearse", _below(state, "rehearse"), "a kill and a resume", RehearsalFacts)
    state.learn(rehearsal=made_safe("rehearsal", known(facts)))


def _made(request: Request, awaited: Awaited, name: str, directory: str, title: str, kind: type[S]) -> S:
    """What plug-in NAME found with the config; its failure is among the facts."""
    job = {"source": request.source, "overrides": list(request.overrides), "directory": directory}
    began = time.monotonic()
    try:
        found = run_probe(
            request.context.python,
            name,
            job,
            stage_timeout_s=request.limit_s(_SILENCE_S),
            total_timeout_s=request.limit_s(_SMOKE_S),
            on_stage=lambda stage, done, total: awaited.on(f"{title}: {stage}"),
        )
    except ProbeFailed as error:
        stages = tuple(StageTime(name=name, seconds=round(seconds, 3)) for name, seconds in error.stages)
        seconds = round(time.monotonic() - began, 1)
        return kind(target=request.source, stages=stages, seconds=seconds, failure=failure_of(error))
    facts = decoded(found, kind, "")
    failure = facts.failure
    if failure is not None:
        failure = msgspec.structs.replace(failure, known=known_as([failure.line]))
    return msgspec.structs.replace(facts, target=request.source, failure=failure)


def _prove(request: Request, state: State, capsules: Path, awaited: Awaited) -> None:
    """Recompute the step, where its run has kept a capsule: that of a small model."""
    kept = list(capsules.glob(f"step_*/{HEAD}"))
    if not kept:
        state.learn(step=absent("the trial step kept no capsule: its model is too large to be kept whole"))
        return
    found = prove(
        [head.parent for head in kept],
        python=request.context.python,
        stage_s=request.limit_s(PROOF_S),
        on_stage=lambda stage: awaited.on(f"the proof of the step: {stage}"),
    )
    state.learn(step=made_safe("step", known(found)))


def _one_step(request: Request) -> str:
    return "trainer.total_training_steps=1" if request.run.framework == "verl" else "a limit of one step"


def _below(state: State, name: str) -> str:
    directory = Path(state.directory) / name
    directory.mkdir()
    return str(directory)
