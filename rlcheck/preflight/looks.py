"""Who looks at each link. Nothing is raised for what is wrong: it is in the facts, where the checks judge it."""

from __future__ import annotations

import msgspec

from rlcheck.doctor import clinic
from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.data import DataFacts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.families import MEASURED
from rlcheck.measure.cluster.boards import Awaited
from rlcheck.measure.data.plan import PlanError, Wanted, make_plan
from rlcheck.measure.data.workers import SILENCE_S, WorkersFailed
from rlcheck.measure.machine.gather import gather
from rlcheck.measure.machine.local_gpus import local_gpu
from rlcheck.measure.memory.asked import AskedError, profile_of, ram_bytes, why_no_sizes
from rlcheck.measure.memory.predict import Gpu
from rlcheck.preflight import slow
from rlcheck.preflight.chain import Look
from rlcheck.preflight.links import LINKS
from rlcheck.preflight.state import Request, State

_FIRST = 5
"""Places that are shown of each kind of trouble in the data, as `rlcheck data` does."""
SAMPLE_ROWS = 10_000
"""Of each file, where the answer is wanted at once: `rlcheck data` reads 17,000 a second on two cores."""


def looks(doctor: clinic.Doctor) -> dict[str, Look]:
    """Who looks at each link, by its name."""

    def machine(request: Request, state: State, awaited: Awaited) -> None:
        examine_machine(doctor, request, state, awaited)

    return {
        "machine": machine,
        "network": slow.network,
        "collectives": slow.collectives,
        "data": data,
        "config": config,
        "memory": memory,
        "rollout": slow.rollout,
        "smoke": slow.smoke,
        "rehearse": slow.rehearse,
    }


def examine_machine(doctor: clinic.Doctor, request: Request, state: State, awaited: Awaited) -> None:
    """Everything that probes tell, also for the links that come: they look side by side, and take no time then."""
    wanted = {family for link in LINKS if link.name not in request.left_out for family in link.families}
    plugged = {check.family for check in doctor.checks} - {family for link in LINKS for family in link.families}
    checks = [check for check in doctor.checks if check.family in wanted | plugged]

    def tell(sections: tuple[str, ...]) -> None:
        awaited.on_names(sections)

    found = gather(request.context, doctor.probes_for(checks), request.timeout_s, tell)
    measured = {name: getattr(state.facts, name) for name in MEASURED}
    state.facts = msgspec.structs.replace(found, **measured)


def config(request: Request, state: State, awaited: Awaited) -> None:
    """The config has been read, since every link needs it."""
    del awaited
    state.learn(config=known(request.run))


def data(request: Request, state: State, awaited: Awaited) -> None:
    """Every row of the run's files, or the first of each."""
    state.learn(data=_dataset(request, awaited))


def _dataset(request: Request, awaited: Awaited) -> Fact[DataFacts]:
    from rlcheck.measure.data.survey import survey

    made = request.run.spec.data.made
    if made:
        return absent(f"no files: {made}")
    try:
        plan = make_plan(Wanted(first=_FIRST), request.run)
        found = survey(
            plan,
            request.context.python,
            lambda text: awaited.on(f"the data: {text}"),
            request.limit_s(SILENCE_S),
            most_rows=request.most_rows,
        )
    except (PlanError, WorkersFailed) as error:
        return missing(MissingKind.ERROR, str(error))
    return known(found.facts)


def memory(request: Request, state: State, awaited: Awaited) -> None:
    """The prediction, for the GPU that was named or this machine's."""
    del awaited
    state.learn(config=known(request.run), memory=_profile(request))


def _profile(request: Request) -> Fact[MemoryProfile]:
    run = request.sized or request.run
    gpu, host_bytes = request.gpu, request.host_bytes
    if gpu is None and run.spec.device == "cpu":
        return absent("the run is on the CPU here; --gpu NAME predicts for a GPU")
    if gpu is None:
        here = local_gpu()
        if here is None:
            return absent("no GPU answers on this machine; --gpu NAME predicts for another one")
        gpu, host_bytes = Gpu(here.name, here.total_bytes), host_bytes or ram_bytes()
    try:
        return (
            missing(MissingKind.ERROR, why) if (why := why_no_sizes(run)) else known(profile_of(run, gpu, host_bytes))
        )
    except AskedError as error:
        return missing(MissingKind.ERROR, str(error))
