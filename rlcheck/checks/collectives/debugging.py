"""NCCL's logging, and torch's ways of noticing that a collective failed."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.collectives.settings import Setting, number_of, settings, show, value_of
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts

_LOW_BYTES = 1 << 30
_FALSE = ("0", "n", "no", "f", "false", "off")
_TRUE = ("1", "y", "yes", "t", "true", "on")
_DEVICES = "/dev/"


def _one(setting: Setting) -> tuple[Evidence, ...]:
    return (evidence(f"environ.{setting.name}", setting.value[:80], setting.where),)


@check("NCL019", "NCCL's log is not too long", needs=("environ",), playbook="nccl-debug-log",
       problem="NCCL logs too much")  # fmt: skip
def log_volume(facts: Facts) -> Verdict:
    """Looks at NCCL_DEBUG and NCCL_DEBUG_SUBSYS.

    What it does:
        TRACE, and INFO with the subsystems ALL, COLL or CALL, write lines for every collective. INFO alone writes
        some hundred lines a process at start.

    Why it matters:
        Every rank writes a line for every operation: gigabytes an hour, a slower step, and full disks. With
        NCCL_DEBUG=NONE even fatal errors of RCCL are silent.
    """
    found = settings(facts)
    level = value_of(found, "NCCL_DEBUG").upper()
    subsystems = {word.strip() for word in value_of(found, "NCCL_DEBUG_SUBSYS").upper().split(",")}
    if not level:
        return passed("NCCL_DEBUG is not set")
    text = ", ".join(show(found[name]) for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS") if name in found)
    if level == "TRACE" or (level in ("INFO", "ABORT") and subsystems & {"ALL", "COLL", "CALL"}):
        return warn("NCCL_DEBUG=WARN in an ordinary run", text, evidence=_one(found["NCCL_DEBUG"]))
    if level in ("INFO", "NONE"):
        what = "a few hundred lines a process" if level == "INFO" else "no message at all, not even of errors"
        return info(f"{text}: {what}", evidence=_one(found["NCCL_DEBUG"]))
    return passed(text)


@check("NCL020", "Every process can write an NCCL log file of its own", needs=("environ",), playbook="nccl-debug-log",
       problem="NCCL's log file cannot be written, or processes share it")  # fmt: skip
def log_file(facts: Facts) -> Verdict:
    """Checks the path in NCCL_DEBUG_FILE.

    What it does:
        Needs %p (process) in the name, and %h (host) when the directory may be shared; a directory that exists and
        can be written to; at least 1 GiB of room; no `~`, which NCCL does not expand.

    Why it matters:
        Without %h and %p all ranks overwrite one file and the log of the failing rank is lost. A full disk under the
        log also stops checkpoints.
    """
    found = settings(facts)
    path = value_of(found, "NCCL_DEBUG_FILE")
    if not path or (path.startswith(_DEVICES) and not path.startswith("/dev/shm/")):
        return skip("NCCL_DEBUG_FILE is not set" if not path else f"NCCL_DEBUG_FILE={path}")
    if not value_of(found, "NCCL_DEBUG"):
        return info(f"{show(found['NCCL_DEBUG_FILE'])}, but NCCL_DEBUG is not set: nothing is written")
    problems = [text for text in (*_name_problems(path), *_disk_problems(facts)) if text]
    if not problems:
        return passed(show(found["NCCL_DEBUG_FILE"]))
    return warn(
        "a log file of its own for every process, on a disk with room",
        f"{show(found['NCCL_DEBUG_FILE'])}: {'; '.join(problems)}",
        evidence=_one(found["NCCL_DEBUG_FILE"]),
    )


def _name_problems(path: str) -> tuple[str, ...]:
    return (
        "" if "%p" in path else "no %p in the name, so processes overwrite one file",
        "`~` is not expanded" if path.startswith("~") else "",
    )


def _disk_problems(facts: Facts) -> tuple[str, ...]:
    if facts.nccl.value is None or facts.nccl.value.debug_file.value is None:
        return ()
    file = facts.nccl.value.debug_file.value
    free = value_or(file.free_bytes, _LOW_BYTES)
    return (
        "" if value_or(file.writable, True) else f"{file.directory} is missing or not writable",
        f"{free / (1 << 20):.0f} MiB free in {file.directory}" if free < _LOW_BYTES else "",
    )


@check("NCL021", "A failed collective ends the run", needs=("environ",), playbook="torch-nccl-errors-hidden",
       problem="A failed collective does not end the run")  # fmt: skip
def errors_are_seen(facts: Facts) -> Verdict:
    """Finds settings that keep torch from ending a run whose collective failed.

    What it does:
        TORCH_NCCL_ASYNC_ERROR_HANDLING=0 (or its old name NCCL_ASYNC_ERROR_HANDLING=0) and
        TORCH_NCCL_ENABLE_MONITORING=0. The new name wins over the old one.

    Why it matters:
        With error handling off, a rank that lost its peers waits forever instead of raising an error: the run hangs
        with all GPUs held. Advice to set 0 "against timeouts" turns an error into a hang.
    """
    found = settings(facts)
    off = [setting for setting in (_torch(found, "ASYNC_ERROR_HANDLING"), _torch(found, "ENABLE_MONITORING"))
           if setting and setting.value.strip().lower() in _FALSE]  # fmt: skip
    if off:
        return warn(
            "torch's handling of NCCL errors left on",
            ", ".join(show(setting) for setting in off),
            evidence=tuple(evidence(f"environ.{s.name}", s.value, s.where) for s in off),
            params={"names": " ".join(setting.name for setting in off)},
        )
    blocking = _torch(found, "BLOCKING_WAIT")
    if blocking and blocking.value.strip().lower() in _TRUE:
        return info(f"{show(blocking)}: every wait() blocks the host, which costs speed and hides nothing more")
    return passed("torch ends a run whose collective failed")


def _torch(found: dict[str, Setting], name: str) -> Setting | None:
    """Torch's own setting, by its new name or by the old one without TORCH_."""
    return found.get(f"TORCH_NCCL_{name}") or found.get(f"NCCL_{name}")


@check("NCL022", "torch's flight recorder is on", needs=("environ",), playbook="torch-nccl-errors-hidden",
       problem="torch's flight recorder is off")  # fmt: skip
def flight_recorder(facts: Facts) -> Verdict:
    """Looks whether torch's record of collectives was switched off.

    What it does:
        Reads TORCH_FR_BUFFER_SIZE and its old name TORCH_NCCL_TRACE_BUFFER_SIZE. 0 switches the record off; unset, it
        is on in current torch.

    Why it matters:
        After a hang this record is what says which rank was late and in which collective.
    """
    found = settings(facts)
    environ = need(facts.environ)
    name = next((n for n in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE") if environ.get(n, "").strip()), "")
    if not name:
        return passed("on by default")
    value = number_of(found, name) if name in found else _plain(environ[name])
    if value == 0:
        return info(f"{name}=0: no record of collectives after a hang")
    return passed(f"{name}={environ[name]}")


def _plain(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and len(text) < 12 else None
