"""What playbooks tell people to type: overrides are keys that verl or rltrain reads, `python -c` is Python."""

from __future__ import annotations

import ast
import re
import shlex

from rlcheck.measure.config import rltrain_data, verl_data
from rlcheck.playbook import DIRECTORY, Library, Playbook
from tests.every import every

LIBRARY = Library()
of_each_playbook = every(tuple(map(LIBRARY.get, LIBRARY.ids())), name=lambda playbook: playbook.id)

# With a + before it, Hydra adds a key that no file of verl has: those are an engine's, or a class's.
_OVERRIDE = re.compile(r"(\+{0,2})((?:\w+\.)+\w+)=.*", re.S)
_NAMED = re.compile(r"(?<![\w.+])((?:actor_rollout_ref|algorithm|critic|trainer)(?:\.(?!log\b)\w+)+)")
_PYTHON = re.compile(r"""\bpython3? -c (?:'([^']*)'|"((?:[^"\\]|\\.)*)")""", re.S)


def keys() -> frozenset[str]:
    return frozenset({*verl_data.every_key(), *verl_data.extra(), *rltrain_data.keys()})


def sections() -> frozenset[str]:
    found = frozenset({".".join(key.split(".")[:size]) for key in keys() for size in range(1, key.count(".") + 1)})
    return found | keys()


def unread(line: str) -> list[str]:
    """The overrides of LINE whose key neither trainer reads."""
    found = [match for word in shlex.split(line) if (match := _OVERRIDE.fullmatch(word))]
    return [match[2] for match in found if not match[1] and match[2] not in keys()]


def broken(text: str) -> list[str]:
    """What is no Python of the `python -c` in TEXT."""
    wrong: list[str] = []
    for single, double in _PYTHON.findall(text):
        code = single or re.sub(r"\\([\"$`\\])", r"\1", double)
        try:
            ast.parse(re.sub(r"\{\{\w+\}\}", "x", code))
        except SyntaxError as error:
            wrong.append(f"{code}: {error}")
    return wrong


@of_each_playbook
def test_its_overrides_are_read(playbook: Playbook) -> None:
    commands = [recipe.command for recipe in playbook.fixes if recipe.kind == "config"]
    assert [key for command in commands for key in unread(command)] == []
    text = (DIRECTORY / f"{playbook.id}.md").read_text(encoding="utf-8")
    assert [key for key in _NAMED.findall(text) if key not in sections()] == []


@of_each_playbook
def test_its_python_is_python(playbook: Playbook) -> None:
    lines = [step.run for step in playbook.verify] + [recipe.command for recipe in playbook.fixes]
    assert [problem for line in lines for problem in broken(line)] == []


def test_what_nobody_reads_is_found() -> None:
    assert unread("actor_rollout_ref.rollout.gpu_memory_utilisation=0.4 +reward.anything.else=1") == [
        "actor_rollout_ref.rollout.gpu_memory_utilisation"
    ]
    assert unread("trainer.nnodes=2 {{override}}") == []
    assert broken("python -c 'import'")
    assert not broken("python -c 'import os'; python3 -c \"print(1)\"")
