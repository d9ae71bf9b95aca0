"""From what `--record` wrote to a record that can be published and kept small.

    python -m tests.tools.slim_record RECORD.json … -o DIRECTORY [--name OLD=NEW …]

Of the Python environment the names stay that a report shows or a check of the families RAY, NET and NCL reads; paths of
a machine, boot ids, GPU serials and Ray's ids are replaced, the same one by the same one everywhere, and `--name` gives
hosts another name. The verdicts must not change: if one does, nothing is written and the command says which.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.facts.cluster import ClusterFacts, MachineFacts, Member
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.python import PythonFacts
from rlcheck.report.topics.python import SHOWN_PACKAGES
from tests.machines.cleaning import LEFT_OUT, clean, then
from tests.tools.lines import text_of

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("RAY", "NET", "NCL")
LARGEST_BYTES = 60_000
KEPT_PACKAGES = (*SHOWN_PACKAGES, "nvidia-nccl-cu12", "nvidia-nccl-cu13", "pynccl", "rlcheck")
# Of this checkout, and of where packages were unpacked beside an environment.
_PATHS = re.compile(r"PYTHONPATH$|TORCHELASTIC_(ERROR_FILE|RUN_ID)$|TORCHINDUCTOR_CACHE_DIR$")
# A home directory that is nobody's own, and the directories of the machines of tests/multinode.
_TEXTS = ((re.compile(rb"/tmp/net\w+/\w+/bin:"), b""), (re.compile(rb"/root(?=[/\"])"), b"~"))
_NUMBERED: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"GPU-([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-([0-9a-f]{8})"), "GPU-{:08x}"),
    (re.compile(rb"\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"), "00000000-0000-4000-8000-{:012x}"),
    (re.compile(rb"\b([0-9a-f]{56})\b"), "{:056x}"),
)


class ChangedError(Exception):
    """A verdict that is another one after the cleaning."""


def slim(nodes: tuple[Facts, ...], names: Mapping[str, str]) -> tuple[Facts, ...]:
    """The documents of a record, cleaned.

    Raises:
        ChangedError: a check says something else about the clean record.
    """
    cleaned = decode(_neutral(encode(tuple(_slim(facts) for facts in nodes)), nodes, names))
    verdicts_must_stay(nodes, cleaned)
    return cleaned


def verdicts_must_stay(before: tuple[Facts, ...], after: tuple[Facts, ...]) -> None:
    """Compare what the checks say.

    Raises:
        ChangedError: not the same.
    """
    old, new = _verdicts(before), _verdicts(after)
    changed = [f"{id}: {status}, then {new.get(id)}" for id, status in old.items() if new.get(id) != status]
    if changed:
        raise ChangedError("; ".join(changed))


def _verdicts(nodes: tuple[Facts, ...]) -> dict[str, str]:
    """By the check's ID: its status on each node."""
    doctor = clinic.summon()
    checks = doctor.select(FAMILIES)
    report = clinic.examine(doctor, nodes, checks, Settings(), command="nccl", started=time.perf_counter())
    seen: dict[str, list[str]] = {}
    for finding in report.checks:
        seen.setdefault(finding.id, []).append(finding.status)
    return {id: " ".join(statuses) for id, statuses in seen.items()}


def _slim(facts: Facts) -> Facts:
    facts = clean(facts, facts.node)
    data = encode((facts,)).replace(f"/opt/{facts.node}".encode(), b"/opt/venv")
    facts = decode(data)[0]
    return msgspec.structs.replace(
        facts,
        environ=then(facts.environ, _environ),
        python=then(facts.python, _python),
        cluster=then(facts.cluster, _cluster),
    )


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if not (LEFT_OUT.match(name) or _PATHS.match(name))}
    return {name: value.split(" ")[0] if name == "NVIDIA_REQUIRE_CUDA" else value for name, value in kept.items()}


def _python(python: PythonFacts) -> PythonFacts:
    site = next((path for path in python.sys_path if path.endswith("site-packages")), "/opt/venv/site-packages")
    kept = tuple(
        msgspec.structs.replace(d, location=site, requires=(), requires_read=False)
        for d in python.distributions
        if d.name in KEPT_PACKAGES
    )
    own = (f"{python.prefix}/", f"{python.base_prefix}/")
    return msgspec.structs.replace(
        python,
        distributions=kept,
        sys_path=tuple(path for path in python.sys_path if path.startswith(own)),
        extensions=(),
        owners={},
        pip_config=(),
    )


def _cluster(cluster: ClusterFacts) -> ClusterFacts:
    return msgspec.structs.replace(cluster, members=tuple(_member(member) for member in cluster.members))


def _member(member: Member) -> Member:
    return msgspec.structs.replace(member, machine=then(member.machine, _machine))


def _machine(machine: MachineFacts) -> MachineFacts:
    return msgspec.structs.replace(machine, environ=_environ(machine.environ))


def _neutral(data: bytes, nodes: tuple[Facts, ...], names: Mapping[str, str]) -> bytes:
    """The text without what names this checkout, its environments or its hosts; ids numbered as they come."""
    for path in sorted(_prefixes(nodes), key=len, reverse=True):
        data = data.replace(path.encode(), b"/opt/venv")
    for home in _homes(nodes):
        data = re.sub(re.escape(home.encode()) + rb"(?![\w-])", b"~", data)
    data = data.replace(str(ROOT).encode(), b"/opt/rlcheck")
    for pattern, replacement in _TEXTS:
        data = pattern.sub(replacement, data)
    for pattern, shape in _NUMBERED:
        data = pattern.sub(_numbering(shape), data)
    for old, new in names.items():
        data = re.sub(rb'(?<!"virtualization": ")\b' + re.escape(old.encode()) + rb"\b", new.encode(), data)
    return data


def _prefixes(nodes: tuple[Facts, ...]) -> set[str]:
    """Where the Pythons of the record are, but for the system's own."""
    found = {str(Path(machine.python_path).parent.parent) for machine in _machines(nodes) if machine.python_path}
    found |= {facts.python.value.prefix for facts in nodes if facts.python.value is not None}
    return found - {"", ".", "/", "/usr", "/usr/local"}


def _homes(nodes: tuple[Facts, ...]) -> set[str]:
    """The home directories of the other machines' users; the recording machine's own is `~` already."""
    return {home for machine in _machines(nodes) if (home := machine.environ.get("HOME", "")).count("/") > 1}


def _machines(nodes: tuple[Facts, ...]) -> list[MachineFacts]:
    members = [member for facts in nodes for member in (facts.cluster.value or ClusterFacts(via="")).members]
    return [member.machine.value for member in members if member.machine.value is not None]


def _numbering(shape: str) -> Callable[[re.Match[bytes]], bytes]:
    seen: dict[bytes, int] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        found = next(group for group in match.groups() if group is not None)
        return shape.format(seen.setdefault(found, len(seen))).encode()

    return numbered


def main() -> None:
    """Clean the records that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--name", action="append", default=[], metavar="OLD=NEW")
    options = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in options.name)
    for path in options.records:
        try:
            data = encode(slim(decode(path.read_bytes(), path.name), names))
        except ChangedError as error:
            raise SystemExit(f"{path}: {error}") from None
        if len(data) > LARGEST_BYTES:
            raise SystemExit(f"{path}: {len(data)} bytes after cleaning, more than {LARGEST_BYTES}")
        (options.output / path.name).write_text(text_of(json.loads(data)), encoding="utf-8")
        print(f"{path.name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
