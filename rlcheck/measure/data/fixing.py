"""`--fix`: a cleaned copy of each file and, beside it, what was put aside and why. The original stays as it is."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcheck.facts.data import DataFacts
from rlcheck.measure.data.merge import LINE_FORMATS
from rlcheck.measure.data.plan import Plan, Source
from rlcheck.measure.data.survey import LEAKED, REPEATED, Survey
from rlcheck.measure.data.workers import Workers

_BOM = b"\xef\xbb\xbf"
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")


@dataclass(frozen=True)
class Copy:
    """What becomes of one file. `verdicts`: a byte for each line or row, 0 to keep it."""

    source: Source
    clean: str
    rejects: str
    verdicts: bytes
    reasons: dict[int, str]

    @property
    def num_rejected(self) -> int:
        """Rows that are put aside."""
        return len(self.verdicts) - self.verdicts.count(0)

    def why(self) -> str:
        """How many rows are put aside for which reason."""
        counts = Counter(self.reasons[code] for code in self.verdicts if code)
        return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in counts.most_common())

    def line(self) -> str:
        """For the user: where, how many, why."""
        aside = (
            f"{self.num_rejected} put aside ({self.why()}) in {self.rejects}" if self.num_rejected else "none put aside"
        )
        return f"{self.clean}: the rows of {self.source.path}, {aside}"


class FixError(Exception):
    """One line for the user."""


def copies(survey: Survey, plan: Plan, out: Path | None) -> tuple[Copy, ...]:
    """What `--fix` would write.

    Raises:
        FixError: two files would get the same name, or a file could not be read to its end.
    """
    reasons = {code: reason for code, reason in enumerate(survey.reasons) if code}
    reasons |= {REPEATED: "repeated", LEAKED: "leak"}
    kept = _kept(survey.facts)
    found: list[Copy] = []
    for number, source in enumerate(plan.sources):
        file = survey.facts.files[number]
        if file.problem or file.lacking:
            raise FixError(
                f"{source.path} was not read to its end ({file.problem or file.lacking}): nothing is written"
            )
        table = bytes(0 if reasons.get(code, "") in kept else code for code in range(256))
        clean, rejects = _names(source, out)
        copy = Copy(source, clean, rejects, bytes(survey.digests[number].verdicts).translate(table), reasons)
        if file.num_rows + copy.num_rejected and copy.num_rejected >= len(copy.verdicts) - file.num_blank:
            raise FixError(f"nothing of {source.path} would be left ({copy.why()}): nothing is written; fix the cause")
        found.append(copy)
    names = Counter(copy.clean for copy in found)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise FixError(f"two files would become {twice[0]}; clean them one by one, each with its own --out")
    return tuple(found)


def _kept(facts: DataFacts) -> tuple[str, ...]:
    """Reasons that do not hold for this run: what the framework filters, what only matters in a prompt for training."""
    asked = facts.asked
    kept = () if asked.framework else ("last_assistant", "truth_missing")
    return (*kept, "too_long") if asked.filter_overlong_prompts or asked.truncation != "error" else kept


def _names(source: Source, out: Path | None) -> tuple[str, str]:
    if out is not None and out.exists() and not out.is_dir():
        raise FixError(f"--out {out} is no directory")
    path = Path(source.path)
    name = path.name.removesuffix(".gz")
    stem = next((name[: -len(suffix)] for suffix in _SUFFIXES if name.lower().endswith(suffix)), name)
    directory = path.parent if out is None else Path(os.path.abspath(out))
    suffix = ".jsonl" if source.format in LINE_FORMATS else ".parquet"
    return str(directory / f"{stem}.clean{suffix}"), str(directory / f"{stem}.rejects.jsonl")


def refuse_existing(planned: Sequence[Copy]) -> None:
    """Hold back rather than overwrite.

    Raises:
        FixError: one of the outputs exists.
    """
    for copy in planned:
        for name in (copy.clean, copy.rejects):
            if os.path.lexists(name):
                raise FixError(f"{name} exists; remove it, choose another --out, or say --yes to overwrite it")


def write(planned: Sequence[Copy], plan: Plan, python: Sequence[str]) -> None:
    """Write all copies; each appears under its name only when it is whole.

    Raises:
        FixError: something cannot be written or read again.
        WorkersFailed: no process can be started that reads tables.
    """
    tables = [copy for copy in planned if copy.source.format not in LINE_FORMATS]
    parts = [f"{name}.part" for copy in planned for name in (copy.clean, copy.rejects)]
    try:
        for copy in planned:
            os.makedirs(os.path.dirname(copy.clean), exist_ok=True)
            if copy not in tables:
                _write_lines(copy)
        if tables:
            _write_tables(tables, plan, python)
        for copy in planned:
            os.replace(f"{copy.clean}.part", copy.clean)
            if copy.num_rejected:
                os.replace(f"{copy.rejects}.part", copy.rejects)
    except OSError as error:
        raise FixError(f"{error.filename or os.path.dirname(planned[0].clean)}: {error.strerror or error}") from None
    finally:
        for name in parts:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _write_lines(copy: Copy) -> None:
    """Lines as they are, but for line ends and the byte order mark; blank ones are left out."""
    number = 0
    opener = gzip.open if copy.source.format == "gz" else open
    with (
        opener(copy.source.path, "rb") as source,
        open(f"{copy.clean}.part", "wb") as clean,
        open(f"{copy.rejects}.part", "w", encoding="utf-8") as rejects,
    ):
        for line in source:
            code = copy.verdicts[number] if number < len(copy.verdicts) else 0
            number += 1
            text = line.rstrip(b"\r\n")
            text = text.removeprefix(_BOM) if number == 1 else text
            if code:
                place = f"{copy.source.path}:{number}"
                row = {"place": place, "reason": copy.reasons[code], "line": text.decode("utf-8", "backslashreplace")}
                rejects.write(json.dumps(row) + "\n")
            elif text.strip():
                clean.write(text + b"\n")
    if number != len(copy.verdicts):
        raise FixError(f"{copy.source.path} changed while it was read: nothing is written; try again")


def _write_tables(tables: Sequence[Copy], plan: Plan, python: Sequence[str]) -> None:
    failed: list[str] = []

    def told(number: int, said: dict[str, Any]) -> None:
        if said.get("error") or said.get("lacking"):
            where = f"the copy of {tables[number].source.path} in {os.path.dirname(tables[number].clean)}"
            failed.append(f"{where}: {said.get('error') or said.get('lacking')}")

    tasks = [
        {
            "do": "sift",
            "path": copy.source.path,
            "kind": copy.source.format,
            "verdicts": base64.b64encode(copy.verdicts).decode(),
            "reasons": {str(code): reason for code, reason in copy.reasons.items()},
            "clean": f"{copy.clean}.part",
            "rejects": f"{copy.rejects}.part",
        }
        for copy in tables
    ]
    with Workers(python, {**plan.options, "tokenizer": ""}, 1) as workers:
        workers.run(tasks, told)
    if failed:
        raise FixError(failed[0])
