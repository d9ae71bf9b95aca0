"""Settings in files, and settings that contradict each other."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.collectives.settings import (
    PREFIXES,
    Setting,
    file_settings,
    number_of,
    settings,
    show,
    table,
    value_of,
)
from rlcheck.facts.base import need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.nccl import ConfFile
from rlcheck.text import several


@check("NCL023", "No file holds NCCL settings", needs=("nccl",), playbook="nccl-conf-file",
       problem="A file holds NCCL settings")  # fmt: skip
def hidden_settings(facts: Facts) -> Verdict:
    """Shows what /etc/nccl.conf, ~/.nccl.conf and NCCL_CONF_FILE set.

    What it does:
        Reads the files that NCCL (or RCCL) reads and lists their settings. It is information: such files are a good
        way to give a whole cluster its settings.

    Why it matters:
        These settings hold for every process, appear in no launch script, and differ between nodes and containers
        without anybody noticing.
    """
    found = file_settings(facts)
    if not found:
        return passed("no configuration file with settings")
    files = sorted({setting.where.rpartition(":")[0] for setting in found})
    return info(
        f"{len(found)} settings in {', '.join(files[:4])}: " + ", ".join(f"{s.name}={_short(s)}" for s in found[:6]),
        details=tuple(show(setting) for setting in found[:40]),
        evidence=tuple(evidence("nccl.conf_files", file, file) for file in files[:4]),
    )


def _short(setting: Setting) -> str:
    return setting.value if len(setting.value) <= 30 else setting.value[:27] + "..."


@check("NCL024", "NCCL settings in files and environment agree", needs=("nccl", "environ"), playbook="nccl-conf-file",
       problem="NCCL settings in files and environment differ")  # fmt: skip
def files_agree(facts: Facts) -> Verdict:
    """Compares NCCL's files with the environment and with each other.

    What it does:
        Reports a variable that has different values in two places. The environment wins, then NCCL_CONF_FILE or
        ~/.nccl.conf, then /etc/nccl.conf.

    Why it matters:
        Processes that do not inherit the variable (Ray workers started elsewhere, ssh) take the file's value, so ranks
        of one run can differ, and NCCL does not notice.
    """
    environ = need(facts.environ)
    places: dict[str, list[Setting]] = {}
    for setting in file_settings(facts):
        places.setdefault(setting.name, []).append(setting)
    if not places:
        return skip("no configuration file with settings")
    for name, rows in places.items():
        if name in environ:
            rows.insert(0, Setting(name=name, value=environ[name], where="environment"))
    clashes = [rows for _, rows in sorted(places.items()) if len({row.value.strip() for row in rows}) > 1]
    if not clashes:
        return passed(f"{len(places)} variables in files, none set differently elsewhere")
    return warn(
        "one value a variable",
        "; ".join(" but ".join(show(row) for row in rows[:3]) for rows in clashes[:6]),
        evidence=tuple(evidence(f"environ.{rows[0].name}", rows[0].value[:80], rows[0].where) for rows in clashes[:8]),
        params={"name": clashes[0][0].name},
    )


@check("NCL025", "NCCL's files are read as they were meant", needs=("nccl",), playbook="nccl-conf-file",
       problem="NCCL reads its files otherwise than they were meant")  # fmt: skip
def files_are_sound(facts: Facts) -> Verdict:
    """Looks for lines that NCCL reads otherwise than their author meant.

    What it does:
        NCCL trims nothing and knows no shell: a space before `=`, `export`, quotes, a line without `=`, a
        NCCL_CONF_FILE that is not there or begins with `~`.

    Why it matters:
        NCCL drops what it does not understand without a word: the setting is in the file and does nothing.
    """
    files = need(facts.nccl).conf_files
    if not files:
        return skip("no configuration file")
    problems = [problem for file in files for problem in _file_problems(file)]
    if not problems:
        return passed(f"{', '.join(file.path for file in files[:4])} read without trouble")
    return warn(
        "plain NAME=value lines in files that exist",
        "; ".join(problems[:6]),
        evidence=tuple(evidence("nccl.conf_files", file.path, file.origin) for file in files[:4]),
        params={"file": files[0].path},
    )


def _file_problems(file: ConfFile) -> list[str]:
    reason = why_missing(file.settings)
    if reason is not None:
        hint = " (`~` is not expanded)" if file.path.startswith("~") else ""
        return [f"{file.origin} {file.path} cannot be read{hint}: {reason.reason}"]
    found = [f"{file.path}:{line} has no `=`" for line in file.skipped[:8]]
    for setting in value_or(file.settings, ()):
        name, text = setting.name, setting.value.strip()
        if name != name.strip() or name.startswith("export "):
            found.append(f"{file.path}:{setting.line} sets {name!r}, which nobody reads")
        elif name.startswith(PREFIXES) and len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
            found.append(f"{file.path}:{setting.line} keeps its quotes")
    return found


_MAXIMA = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
_MINIMA = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")


@check("NCL026", "NCCL settings do not contradict each other", needs=("environ",), playbook="nccl-bad-value",
       problem="NCCL settings contradict each other")  # fmt: skip
def contradictions(facts: Facts) -> Verdict:
    """Finds pairs of settings of which one undoes or forbids the other.

    What it does:
        IB off with NCCL_NET=IB or with IB tuning, NVLS or multi-node NVLink forced where cuMem is off, threads times
        sockets above 64, an old and a new limit of channels with different values. RDMA tuning that
        idles beside NCCL_IB_DISABLE=1 is reported as information.

    Why it matters:
        Such a set stops NCCL at start, or one half of it silently does nothing and misleads a measurement.
    """
    found = settings(facts)
    clashes = _clashes(found)
    if not clashes:
        return passed("no contradiction" if found else "no NCCL setting")
    names = list(dict.fromkeys(name for pair, _ in clashes for name in pair))
    text = "; ".join(f"{' and '.join(f'{n}={value_of(found, n)}' for n in pair)}: {why}" for pair, why in clashes)
    if all(why == _IDLE for _, why in clashes):
        return info(text)
    return warn(
        "settings that go together",
        text,
        evidence=tuple(evidence(f"environ.{name}", found[name].value[:80], found[name].where) for name in names),
        params={"names": several(dict.fromkeys(pair[0] for pair, why in clashes if why != _IDLE))},
    )


_IDLE = "the tuning has no effect"


def _clashes(found: dict[str, Setting]) -> list[tuple[tuple[str, ...], str]]:
    net = value_of(found, "NCCL_NET").lower()
    ib_off = bool(number_of(found, "NCCL_IB_DISABLE"))
    tuning = [n for n in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC") if value_of(found, n)]
    rows: list[tuple[bool, tuple[str, ...], str]] = [
        (ib_off and net == "ib", ("NCCL_IB_DISABLE", "NCCL_NET"), "NCCL finds no network and stops"),
        (ib_off and bool(tuning), ("NCCL_IB_DISABLE", *tuning), _IDLE),
        (net == "socket" and bool(tuning), ("NCCL_NET", *tuning), _IDLE),
        (_both(found, "NCCL_CUMEM_ENABLE", 0, "NCCL_MNNVL_ENABLE", 1), ("NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"),
         "multi-node NVLink needs cuMem"),
        (_both(found, "NCCL_MULTI_RANK_GPU_ENABLE", 1, "NCCL_NVLS_ENABLE", 1),
         ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE"), "initialisation fails when two ranks share a GPU"),
        (_both(found, "NCCL_NVLS_ENABLE", 0, "NCCL_ALGO", None) and "nvls" in _included(found),
         ("NCCL_NVLS_ENABLE", "NCCL_ALGO"), "NVLS is asked for and switched off"),
        (_sockets(found) > 64, ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), "their product may be 64 at most"),
        (_differ(found, *_MAXIMA), _MAXIMA, "the lower one holds"),
        (_differ(found, *_MINIMA), _MINIMA, "the higher one holds"),
        (bool(value_of(found, "NCCL_IB_PKEY") and value_of(found, "NCCL_IB_PKEY_VALUE")),
         ("NCCL_IB_PKEY", "NCCL_IB_PKEY_VALUE"), "the value wins over the index"),
        (bool(value_of(found, "NCCL_IB_GID_INDEX")) and (number_of(found, "NCCL_IB_GID_INDEX") or 0) >= 0
         and bool(value_of(found, "NCCL_IB_ADDR_RANGE")), ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE"),
         "with a fixed index the range is not looked at"),
    ]  # fmt: skip
    return [(tuple(name for name in names if name in found), why) for holds, names, why in rows if holds]


def _both(found: dict[str, Setting], first: str, one: int | None, second: str, two: int | None) -> bool:
    return all(
        value_of(found, name) != "" and (wanted is None or number_of(found, name) == wanted)
        for name, wanted in ((first, one), (second, two))
    )


def _included(found: dict[str, Setting]) -> str:
    text = value_of(found, "NCCL_ALGO").lower()
    return "" if "^" in text else text


def _sockets(found: dict[str, Setting]) -> int:
    pair = (number_of(found, "NCCL_SOCKET_NTHREADS"), number_of(found, "NCCL_NSOCKS_PERTHREAD"))
    return (pair[0] or 1) * (pair[1] or 1) if any(pair) else 0


def _differ(found: dict[str, Setting], old: str, new: str) -> bool:
    pair = (number_of(found, old), number_of(found, new))
    return None not in pair and pair[0] != pair[1]


@check("NCL027", "No debugging setting of NCCL is left over", needs=("environ",), playbook="nccl-tuning-left-over",
       problem="A debugging setting of NCCL is left over")  # fmt: skip
def debugging_settings(facts: Facts) -> Verdict:
    """Counts the settings that NVIDIA's guide says not to keep in production.

    What it does:
        Lists set variables of the guide's section "Debugging", except those that a finding of its own speaks of.

    Why it matters:
        New versions of NCCL choose better than fixed values do; NVIDIA warns of "sub-optimal behavior, crashes, or
        hangs" from those that stay.
    """
    found = settings(facts)
    variables = table().variables if found else {}
    left = [s for name, s in sorted(found.items()) if name in variables and variables[name].debugging]
    left = [setting for setting in left if setting.name not in _TOLD_ELSEWHERE and setting.value.strip()]
    if not left:
        return passed("none" if found else "no NCCL setting")
    return info(
        f"{len(left)} from NVIDIA's debugging section: {', '.join(setting.name for setting in left[:10])}",
        details=tuple(show(setting) for setting in left[:40]),
    )


_TOLD_ELSEWHERE = frozenset({
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_CUMEM_ENABLE",
    "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LAUNCH_MODE",
})  # fmt: skip
