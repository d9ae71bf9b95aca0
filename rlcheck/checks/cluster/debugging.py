"""Ray's debugger and logging switches."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.cluster.common import is_on, ray_version, variable
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import is_absent

_DISTRIBUTED_DEBUGGER = Version("2.39.0")
_SLOW = (
    "RAY_record_ref_creation_sites",
    "RAY_record_task_actor_creation_sites",
    "RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING",
)
_FAULTS = ("RAY_testing_rpc_failure", "RAY_testing_asio_delay_us")


@check("RAY005", "The two Ray debuggers are not mixed", needs=("environ",), playbook="ray-test-switches",
       problem="Failing Ray tasks wait for the old debugger")  # fmt: skip
def debugger_conflict(facts: Facts) -> Verdict:
    """Looks for the old debugger and post-mortem debugging at the same time.

    What it does:
        RAY_DEBUG=legacy chooses the old debugger in a terminal; RAY_DEBUG_POST_MORTEM=1 stops failing tasks for it.

    Why it matters:
        Set together, a failing task waits for `ray debug` in a terminal, and the VS Code extension does not show it.
        It looks like a hang of the run.
    """
    legacy, post_mortem = variable(facts, "RAY_DEBUG") == "legacy", variable(facts, "RAY_DEBUG_POST_MORTEM") == "1"
    if legacy and post_mortem:
        return warn(
            "RAY_DEBUG=legacy or RAY_DEBUG_POST_MORTEM=1, not both",
            "both",
            evidence=(evidence("environ.RAY_DEBUG", "legacy"), evidence("environ.RAY_DEBUG_POST_MORTEM", "1")),
            params={"variable": "RAY_DEBUG"},
        )
    return passed("not both are set")


@check("RAY006", "Ray's debugger can work", needs=("environ", "python"), playbook="ray-test-switches",
       caused_by=("RAY005",),
       problem="Ray's debugger cannot work")  # fmt: skip
def debugger_usable(facts: Facts) -> Verdict:
    """Compares the wish for a debugger with the installed Ray and debugpy.

    What it does:
        With RAY_DEBUG=1, asks for Ray 2.39 or later and for debugpy. Says which values of RAY_DEBUG do nothing.
        RAY_DEBUG_POST_MORTEM alone is left to RAY007, which takes it away.

    Why it matters:
        Without debugpy a breakpoint in a worker raises an error instead of stopping there; in an older Ray the
        variables have another meaning or none. Values other than 1 and legacy switch breakpoints off. Workers read
        the variables from their own environment: that of `ray start`, or the job's runtime_env.
    """
    debug, version = variable(facts, "RAY_DEBUG"), ray_version(facts)
    if debug is None:
        return passed("no debugger is asked for by RAY_DEBUG")
    if version is None:
        return skip("Ray is not installed in the examined environment")
    if debug == "legacy":
        return info(f"RAY_DEBUG=legacy: breakpoints wait for `ray debug` in a terminal (Ray {version})",
                    params={"variable": "RAY_DEBUG"})  # fmt: skip
    if debug != "1":
        return info(f"RAY_DEBUG={debug}: neither 1 nor legacy, so breakpoints in workers do nothing",
                    params={"variable": "RAY_DEBUG"})  # fmt: skip
    if version < _DISTRIBUTED_DEBUGGER:
        return warn(f"Ray {_DISTRIBUTED_DEBUGGER} or later for the distributed debugger", f"Ray {version}",
                    params={"ray": "2.39", "switch": "RAY_DEBUG"})  # fmt: skip
    if is_absent(facts, "debugpy"):
        return warn("debugpy for the distributed debugger", "no debugpy in the examined environment",
                    params={"debugpy": "1.8.0", "switch": "RAY_DEBUG"})  # fmt: skip
    return passed(f"Ray {version} and debugpy are installed")


@check("RAY007", "Failing tasks are not frozen for a debugger", needs=("environ",), playbook="ray-test-switches",
       problem="Failing Ray tasks wait for a debugger")  # fmt: skip
def post_mortem(facts: Facts) -> Verdict:
    """Notices post-mortem debugging, which is meant for interactive work.

    What it does:
        Reports RAY_DEBUG_POST_MORTEM=1.

    Why it matters:
        With it a task that raises an exception is frozen until a debugger attaches, so an unattended run does not fail
        but hangs, holding its GPUs. The variable is easily left behind in a job script.
    """
    if variable(facts, "RAY_DEBUG_POST_MORTEM") == "1":
        return warn(
            "no RAY_DEBUG_POST_MORTEM in an unattended run",
            "RAY_DEBUG_POST_MORTEM=1",
            evidence=(evidence("environ.RAY_DEBUG_POST_MORTEM", "1"),),
        )
    return passed("RAY_DEBUG_POST_MORTEM is not on")


@check("RAY008", "No test switch of Ray is on", needs=("environ",), playbook="ray-test-switches",
       problem="A test switch of Ray is on")  # fmt: skip
def test_switches(facts: Facts) -> Verdict:
    """Looks for switches of Ray that break or slow it on purpose.

    What it does:
        RAY_testing_rpc_failure and RAY_testing_asio_delay_us inject faults; the record_… switches write down where each
        object, task and log line came from.

    Why it matters:
        Fault injection makes calls between nodes fail at random, which no amount of looking at the network explains.
        Recording costs time and memory in every task.
    """
    faults = {name: value for name in _FAULTS if (value := variable(facts, name))}
    slow = {name: value for name in _SLOW if (value := variable(facts, name)) and is_on(value)}
    proof = tuple(evidence(f"environ.{name}", value) for name, value in {**faults, **slow}.items())
    if faults:
        name, value = next(iter(faults.items()))
        return warn("no fault injection", f"{name}={value}", evidence=proof, params={"variable": name})
    if slow:
        shown = ", ".join(f"{name}={value}" for name, value in slow.items())
        return info(f"{shown}: recording slows every task", evidence=proof, params={"variable": next(iter(slow))})
    return passed("none is set")


@check("RAY009", "Worker messages reach the driver", needs=("environ",), playbook="ray-driver-logs",
       problem="Worker messages do not reach the driver")  # fmt: skip
def driver_logs(facts: Facts) -> Verdict:
    """Reads the switches that decide what of the workers' output the driver shows.

    What it does:
        RAY_LOG_TO_DRIVER off hides all of it; RAY_DEDUP_LOGS off repeats each line once per rank. Only 1 and true are
        yes to Ray.

    Why it matters:
        With the output of the workers hidden, the first error of a rank is only in a file below the session directory,
        and the driver shows a consequence such as ActorDiedError.
    """
    notes = {
        "RAY_LOG_TO_DRIVER": "the driver shows no output of its workers",
        "RAY_DEDUP_LOGS": "a line that all ranks print is shown once for each of them",
    }
    found = [name for name in notes if (value := variable(facts, name)) is not None and not is_on(value)]
    if not found:
        return passed("as by default: shown, and repeated lines folded")
    said, params = "; ".join(f"{name}={variable(facts, name)}: {notes[name]}" for name in found), {"variable": found[0]}
    if "RAY_LOG_TO_DRIVER" in found:
        return warn("the output of workers on the driver", said, params=params)
    return info(said, params=params)
