"""Is the clock disciplined by a time source? One read-only system call tells, whatever daemon keeps the time."""

from __future__ import annotations

from pathlib import Path

from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.facts.system import ClockFacts
from rlcheck.measure.machine.context import ProbeContext, os_error

_STA_UNSYNC = 0x40
_TIME_ERROR = 5


def collect_clock(context: ProbeContext) -> Fact[ClockFacts]:
    """The kernel's view; for a made-up root, what systemd-timesyncd left behind there."""
    if context.root != Path("/"):
        if context.exists("/run/systemd/timesync/synchronized"):
            return known(ClockFacts(synchronized=True, source="/run/systemd/timesync/synchronized"))
        return missing(MissingKind.UNSUPPORTED, "the kernel's clock was not asked")
    return _adjtimex()


def _adjtimex() -> Fact[ClockFacts]:
    import ctypes

    class Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_int),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_long * 32),
        )

    state = Timex()  # modes = 0: read only
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError) as error:
        return missing(MissingKind.UNSUPPORTED, f"adjtimex: {error}")
    if code < 0:
        number = ctypes.get_errno()
        return os_error(OSError(number, "refused by the kernel or the container's seccomp filter"), "adjtimex")
    unsynchronized = code == _TIME_ERROR or bool(state.status & _STA_UNSYNC)
    return known(
        ClockFacts(synchronized=not unsynchronized, max_error_us=max(0, int(state.maxerror)), source="adjtimex(2)")
    )
