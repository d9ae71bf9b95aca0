"""Read every example config that a trainer's own repository ships, and leave a dated record of what came of it.

    python -m tests.tools.trainer_examples NAME[@VERSION] CHECKOUT [--record]

Looks through shell scripts, Python files (and commands in their docstrings), files of keys, and code blocks of pages
under examples, docs and recipes. What starts no RL run is left out. `--record` writes
tests/fixtures/trainers/NAME.json: how many were read, which keys were unknown, what crashed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.measure.config.detect import framework_of
from rlcheck.measure.config.document import parse
from rlcheck.measure.config.programs import settings_in
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.trainer import Trainer
from rlcheck.measure.config.trainers import trainers
from rlcheck.playbook import Library
from tests.tools.lines import text_of

RECORDS = Path(__file__).resolve().parents[1] / "fixtures" / "trainers"
FOLDERS = ("examples", "docs", "recipes", "configs", "scripts", "k8s", "tests/snapshots/launch_scripts", "README.md")
_FENCE = re.compile(r"^[ \t]*```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^[ \t]*```", re.M | re.S)


@dataclass
class Record:
    """What came of the examples.

    `left_out`: pieces of pages that are no whole example, configs of no RL run, and why. `unknown`: keys that the
    table does not have, by example. `refused`: what could not be read, and why. `failing`: checks that fail.
    """

    trainer: str
    source: str
    date: str
    read: int = 0
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    unknown: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    crashed: dict[str, str] = field(default_factory=dict[str, str])
    failing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


def examples(trainer: Trainer, checkout: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each example of TRAINER and what `read_run` is to be given."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in _files(checkout):
            name = str(path.relative_to(checkout))
            text = path.read_text(encoding="utf-8", errors="replace")
            is_script = path.suffix in (".sh", ".slurm", ".sbatch") and _starts(trainer, text)
            if is_script or (path.suffix in (".yaml", ".yml", ".toml") and _is_document(trainer, path, text)):
                yield name, str(path)
            elif path.suffix == ".py":
                if _has_calls(trainer, text):
                    yield name, str(path)
                for number, block in enumerate(_docstrings(text)):
                    yield from _commands(trainer, f"{name} docstring {number}", block, checkout)
            elif path.suffix == ".txt":
                yield from _snapshots(trainer, name, text)
            elif path.suffix == ".md":
                yield from _blocks(trainer, name, text, Path(scratch))


def _starts(trainer: Trainer, text: str) -> bool:
    """Whether a line of TEXT has the trainer's command, and TEXT the sign of its files where it has one."""
    signed = not trainer.file_sign or f" {trainer.file_sign} " in text
    lines = [line for line in text.splitlines() if not re.match(r"\s*(#|from )", line)]
    return signed and trainer.is_in(text) and any(trainer.command.search(line) for line in lines)


def _files(checkout: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        top = checkout / folder
        yield from ([top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file()))


def _is_document(trainer: Trainer, path: Path, text: str) -> bool:
    if not trainer.documents:
        return False
    with contextlib.suppress(UserError):
        return framework_of(parse(str(path), text)) == trainer.name
    return False


def _has_calls(trainer: Trainer, text: str) -> bool:
    return bool(trainer.calls) and any(re.search(rf"\b{call}\(", text) for call in trainer.kinds)


def _docstrings(text: str) -> Iterator[str]:
    with contextlib.suppress(SyntaxError):
        for node in ast.parse(text).body:
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value


def _commands(trainer: Trainer, name: str, block: str, checkout: Path) -> Iterator[tuple[str, str]]:
    """Paragraphs that start a run: those with the trainer's command, or a program with options."""
    for number, part in enumerate(re.split(r"\n\s*\n", block)):
        lines = [line for line in part.splitlines() if not line.strip().startswith(("```", "#"))]
        command = "\n".join(lines).strip()
        if _starts(trainer, command) or any(settings_in(word, checkout) for word in re.findall(r"\S+\.py\b", command)):
            yield f"{name}.{number}", command + "\n"


def _snapshots(trainer: Trainer, name: str, text: str) -> Iterator[tuple[str, str]]:
    """Commands that a script was recorded to run (miles): a heading for each, a word or an option a line."""
    for number, block in enumerate(re.split(r"^### .*$", text.replace("<REPO_ROOT>", "/root/repo"), flags=re.M)):
        command = " ".join(line.strip() for line in block.splitlines() if not line.startswith("#"))
        if _starts(trainer, command):
            yield f"{name} command {number}", command + "\n"


def _blocks(trainer: Trainer, name: str, text: str, scratch: Path) -> Iterator[tuple[str, str]]:
    for number, fence in enumerate(_FENCE.finditer(text)):
        inner = "\n".join(line.removeprefix("> ") for line in fence["text"].splitlines())
        inner = textwrap.dedent(inner)
        if fence["kind"] in ("yaml", "yml") and (named := re.match(r"#\s*(\S+\.ya?ml)", inner)) is not None:
            (scratch / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (scratch / named[1]).write_text(inner, encoding="utf-8")
        elif fence["kind"] in ("python", "py") and _has_calls(trainer, inner):
            inner = re.sub(r"^(\s*)\.\.\.,?\s*(#.*)?$|,\s*\.\.\.\s*,?(?=\s*(\)|#|$))", "", inner, flags=re.M)
            path = scratch / f"{Path(name).stem}_{number}.py"
            path.write_text(inner, encoding="utf-8")
            yield f"{name} block {number}", str(path)
        elif fence["kind"] in ("bash", "sh", "shell", ""):
            yield from _commands(trainer, f"{name} block {number}", inner, scratch)


def read_all(name: str, checkout: Path) -> Record:
    """Read every example of the trainer NAME (also with @VERSION) in CHECKOUT."""
    trainer = trainers()[name.partition("@")[0]]
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    record = Record(trainer.name, commit, str(date.today()))
    os.chdir(checkout)
    for example, source in examples(trainer, checkout):
        _one(record, name, example, source)
    return record


@cache
def _library() -> Library:
    return Library()


def _one(record: Record, framework: str, example: str, source: str) -> None:
    from rlcheck.checks import builtin_checks
    from rlcheck.judging import judge

    try:
        run = read_run(source, [], look=False)
        name = framework.partition("@")[0]
        if run.framework != name if "@" not in framework else run.framework == name:
            run = read_run(source, [], framework=framework, look=False)
        if (".md " in example or " docstring " in example) and any(
            one.kind == "syntax" and one.key.isalpha() for one in run.problems
        ):
            record.left_out[example] = "words of the page among those of the command"
            return
        # An ellipsis and {braces} stand for more options.
        run = msgspec.structs.replace(
            run, problems=tuple(one for one in run.problems if one.key not in ("...", "…") and one.key[:1] != "{")
        )
        checks = [check for check in builtin_checks() if check.family == "CFG"]
        findings = judge(Facts(config=known(run)), checks, _library())
    except UserError as error:
        why = str(error).rpartition("/")[2][-200:]
        piece = (".md " in example or " docstring " in example) and any(
            words in why for words in ("not Python", "no such file", "expected keys such as", "not YAML")
        )
        (record.left_out if piece or "is no RL run" in why else record.refused)[example] = why
        return
    except Exception as error:  # what this tool looks for
        record.crashed[example] = f"{type(error).__name__}: {error}"[:200]
        return
    record.read += 1
    if errors := [f"{one.id}: {one.message}" for one in findings if one.status == "error"]:
        record.crashed[example] = "; ".join(errors)
    if wrong := [p.key for p in run.problems if p.kind in ("unknown", "moved", "syntax")]:
        record.unknown[example] = wrong
    if failing := [f"{one.id}: {one.message}" for one in findings if one.status == "fail"]:
        record.failing[example] = failing


def main(words: list[str]) -> int:
    """Run the command and return its exit code: 1 where an example could not be read."""
    name, checkout = words[0], Path(words[1]).resolve()
    record = read_all(name, checkout)
    content: dict[str, Any] = vars(record)
    if "--record" in words:
        (RECORDS / f"{record.trainer}.json").write_text(text_of(content), encoding="utf-8")
    print(json.dumps(content, indent=1, ensure_ascii=False))
    return 1 if record.refused or record.crashed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
