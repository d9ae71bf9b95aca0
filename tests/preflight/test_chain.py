"""The order of the links, what a failure leaves untried, and what each verdict is; with stand-ins for who looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlcheck.cli.requests.configs import LinkName
from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.config import AlgorithmSpec, ConfigFacts, KeyProblem, Place, RolloutSpec, RunSpec
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile, Owner, Phase
from rlcheck.families import FAMILIES, MEASURED
from rlcheck.measure.config.whole import as_here
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.preflight.chain import Result, Step, run_chain
from rlcheck.preflight.links import LINKS, NAMES, Link
from rlcheck.preflight.state import Request, State
from tests.checks.python.cases import CASES as ENV
from tests.checks.rollout.cases import CASES as ROL
from tests.checks.run.cases import CASES as RUN
from tests.checks.run.cases import step

DOCTOR = clinic.summon()
SPEC = RunSpec(device="cpu", algorithm=AlgorithmSpec(adv_estimator="grpo"), rollout=RolloutSpec(n=2))
HEALTHY = ConfigFacts(framework="rltrain", source="run.yaml", spec=SPEC)
MISSPELT = KeyProblem(kind="unknown", key="trainer.sede", message="no such key", place=Place(file="run.yaml", line=3))


class Silent:
    def on(self, *what: str) -> None: ...

    def on_names(self, names: tuple[str, ...]) -> None: ...


def nothing(request: Request, state: State, awaited: object) -> None:
    """A link at which there is nothing to see."""


def learns(**sections: object) -> Callable[..., None]:
    def look(request: Request, state: State, awaited: object) -> None:
        state.learn(**sections)

    return look


def walked(
    looks: dict[str, Callable[..., None]],
    *,
    run: ConfigFacts = HEALTHY,
    ignore: tuple[str, ...] = (),
    left_out: dict[str, str] | None = None,
) -> tuple[Result, dict[str, Step]]:
    """The chain, with `nothing` at the links that LOOKS does not name."""
    context = ProbeContext(environ={})
    request = Request(run, "run.yaml", (), context, Settings(), ignore=ignore, left_out=left_out or {})
    usual = {
        "config": learns(config=known(run)),
        "rollout": learns(rollout=ROL["ROL001"][1].rollout),
        "smoke": learns(smoke=step().smoke),
    }
    found = run_chain(request, {**dict.fromkeys(NAMES, nothing), **usual, **looks}, DOCTOR, Silent())
    return found, {one.link: one for one in found.steps}


def breaks(family_case: Facts) -> Callable[..., None]:
    """The machine of a case on which a check fires."""

    def look(request: Request, state: State, awaited: object) -> None:
        state.facts = family_case

    return look


def test_every_family_and_every_measurement_has_its_link() -> None:
    # Of a run that has begun, or of what commands of their own measure: nothing to look at before a run. The smoke
    # proves its own step, and calls the run's own reward.
    assert sorted(family for link in LINKS for family in link.families) == sorted(
        set(FAMILIES) - {"DRF", "CAN", "HNG", "RES", "RWD", "SLO"}
    )
    inner = {"reach", "cluster", "run", "drift", "step", "canary", "hang", "resume", "reward", "slow"}
    assert {link.section for link in LINKS if link.section} == set(MEASURED) - inner
    assert tuple(name.value for name in LinkName) == NAMES
    for number, link in enumerate(LINKS):
        assert {need.link for need in link.needs} <= set(NAMES[:number]), "a link rests on earlier ones alone"


def test_a_healthy_chain_holds() -> None:
    found, steps = walked({})
    assert [step.link for step in found.steps] == list(NAMES)
    assert {name: steps[name].verdict for name in ("config", "rollout", "smoke")} == dict.fromkeys(
        ("config", "rollout", "smoke"), "holds"
    )
    assert found.report.exit_code == 0
    assert found.report.exhibits[-1].title == "Chain"
    assert [row["link"] for row in found.report.data["preflight"]] == list(NAMES)


def test_a_broken_machine_leaves_what_starts_something_untried() -> None:
    fires = next(id for id, (bad, _) in ENV.items() if _status(id, bad) == "fail")
    found, steps = walked({"machine": breaks(ENV[fires][0])})
    assert steps["machine"].verdict == "fails"
    for name in ("collectives", "rollout", "smoke"):
        assert steps[name].verdict == "not tried"
        assert fires in steps[name].reason
        assert steps[name].reason.endswith("(this machine)")
    assert steps["config"].verdict == "holds", "a config is judged on any machine"
    assert found.report.exit_code == 1


def _status(id: str, facts: Facts) -> str:
    check = next(check for check in DOCTOR.checks if check.id == id)
    return check.judge(facts).status


def test_a_fault_of_the_config_leaves_engine_and_step_untried_and_memory_judged() -> None:
    broken = ConfigFacts(framework="rltrain", source="run.yaml", spec=SPEC, problems=(MISSPELT,))
    needed = Phase(name="rollout", owners=(Owner(kind="weights", role="actor", num_bytes=1 << 30),))
    memory = MemoryProfile(gpu="H200", gpu_bytes=1 << 37, usable_bytes=1 << 37, phases=(needed,))
    found, steps = walked({"memory": learns(memory=known(memory))}, run=broken)
    assert steps["config"].failed == ("CFG001",)
    assert steps["memory"].verdict == "holds"
    assert (steps["rollout"].verdict, steps["rollout"].reason) == ("not tried", "because of CFG001 (config)")
    assert steps["smoke"].verdict == "not tried"
    assert not [finding for finding in found.report.checks if finding.family in ("ROL", "RUN")]


def test_what_is_waived_blocks_nothing() -> None:
    broken = ConfigFacts(framework="rltrain", source="run.yaml", spec=SPEC, problems=(MISSPELT,))
    found, steps = walked({}, run=broken, ignore=("CFG001",))
    assert (steps["config"].verdict, steps["smoke"].verdict) == ("holds", "holds")
    assert found.report.exit_code == 0
    assert found.report.summary.waived == 1


def test_an_engine_that_fails_leaves_the_step_untried() -> None:
    _, steps = walked({"rollout": learns(rollout=ROL["ROL001"][0].rollout)})
    assert steps["rollout"].failed[0] == "ROL001"
    assert steps["smoke"].reason.startswith("because of ROL001")


def test_collectives_matter_to_an_engine_that_spans_gpus() -> None:
    link = next(link for link in LINKS if link.name == "rollout")
    need = next(need for need in link.needs if need.link == "collectives")
    assert not need.when(HEALTHY)
    assert need.when(ConfigFacts(spec=RunSpec(rollout=RolloutSpec(tensor_parallel=2))))


def test_a_link_that_is_left_out_blocks_nothing() -> None:
    _, steps = walked({}, left_out={"rollout": "--skip rollout"})
    assert steps["rollout"].line() == "left out: --skip rollout"
    assert steps["smoke"].verdict == "holds"


def test_what_there_is_not_is_no_failure_and_what_was_not_seen_is_a_doubt() -> None:
    _, steps = walked({"smoke": learns(smoke=absent("only a trainer makes a step"))})
    assert steps["smoke"].line() == "does not apply: only a trainer makes a step"
    gone = missing(MissingKind.ERROR, "the process that reads the data ended")
    found, steps = walked({"data": learns(data=gone)})
    assert steps["data"].line() == "not known: the process that reads the data ended"
    assert {finding.status for finding in found.report.checks if finding.family == "DAT"} == {"unknown"}


def test_a_step_with_numbers_that_are_none_fails() -> None:
    found, steps = walked({"smoke": learns(smoke=RUN["RUN002"][0].smoke)})
    assert steps["smoke"].failed == ("RUN002",)
    (finding,) = [finding for finding in found.report.checks if finding.status == "fail"]
    assert finding.playbook == "training-turned-nan"


@pytest.mark.parametrize(("num_gpus", "device", "gpus"), [(0, "cpu", 1), (4, "cuda", 4)])
def test_what_the_config_leaves_open_is_this_machine_s(num_gpus: int, device: str, gpus: int) -> None:
    values = {"trainer.device": "auto", "trainer.n_gpus_per_node": None}
    num = known(num_gpus) if num_gpus else absent("this machine has no GPU")
    read = ConfigFacts(
        framework="rltrain", values=values, num_gpus=num, fallbacks=("trainer.device=auto: taken as cuda",)
    )
    here = as_here(read)
    assert (here.spec.device, here.spec.gpus_per_node) == (device, gpus)
    assert ("trainer.device: cpu, by this machine" in here.fallbacks) == (device == "cpu")
    verl = ConfigFacts(framework="verl", values=values, num_gpus=num)
    assert as_here(verl) is verl


def test_links_are_data() -> None:
    assert all(isinstance(link, Link) for link in LINKS)
    assert [link.name for link in LINKS if link.slow] == ["collectives", "rollout", "smoke", "rehearse"]
