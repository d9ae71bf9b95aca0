"""The command that starts a run, found in a shell script or a pasted line.

Nothing is executed. Assignments of the script itself (`NAME=…`, arrays too) are followed, `${NAME:-default}` takes
its default; what only the shell could know stays as it is written and is noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.overrides import is_override
from rlcheck.measure.config.shell_words import Word, expand, statements
from rlcheck.measure.config.trainer import Trainer
from rlcheck.measure.config.trainers import started, trainers

_VERL = re.compile(r"verl\.trainer\.main_ppo\w*|(?:.*/)?main_ppo\w*\.py")
# Modules that train with a config of their own over verl's, and modules of verl that train without RL, or not at all.
_RECIPE = re.compile(
    r"(?:verl\.)?(?:recipe|experimental)\.(?:\w+\.)+(?:main_\w+|\w+_main|\w+_main_ppo)"
    r"|(?:.*/)?(?:recipe|experimental)/(?:[\w-]+/)+(?:main_\w+|\w+_main|\w+_main_ppo)\.py|(?:.*/)?main_dapo\.py"
)
_NO_RL = re.compile(r"(?:.*[./])?(?:(?:\w+_)?sft_trainer\w*|main_(?:eval|generation)\w*)(?:\.py)?")
# Options of the launchers of the command, and of Hydra, that take a word of their own.
_HYDRA = {
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-dir": "config_path",
    "-cd": "config_path",
}
_ASSIGNED = re.compile(r"(?:export +|declare +(?:-\w+ +)*|local +|readonly +)*([A-Za-z_]\w*)(\+?)=", re.DOTALL)

# The text of a here-document.
_HERE = re.compile(r"<<-?[ \t]*[\"']?(\w+)[\"']?[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.M | re.S)

# A text that is read into a variable: `read -r -d '' NAME <<EOF`.
_KEPT = re.compile(
    r"^[ \t]*read (?:-\S+ +|'' +|\"\" +)*([A-Za-z_]\w*) *<<-?[ \t]*[\"']?(\w+)[\"']?[ \t]*\n(.*?)^[ \t]*\2[ \t]*$",
    re.M | re.S,
)

_SEGMENTS = re.compile(r"^[^#\n]*PYTORCH_(?:CUDA_)?ALLOC_CONF\b[^#\n]*\bexpandable_segments:(true|false)", re.M | re.I)

# How a note ends of words that may be any options, which nothing is known of.
_IS_LEFT_OUT = "is left out"


@dataclass
class Launch:
    """A command that starts a run: its framework, its overrides, and what Hydra is told about files."""

    framework: str = ""
    words: list[str] = field(default_factory=list[str])
    config_name: str = ""
    config_path: str = ""
    recipe: str = ""
    """The module that was started, where that is none of verl's own trainers but one that extends them."""
    kind: str = ""
    """Of another trainer: which of its commands."""
    before: tuple[str, ...] = ()
    """Words before the command of another trainer: its launcher's."""
    program: str = ""
    """The Python file that was started, where it holds the settings of another trainer."""
    is_adopted: bool = False
    """A program that is not here, known by its options: it may have options of its own."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of_words(cls, words: list[str]) -> Launch:
        """WORDS without Hydra's options, which become fields."""
        launch = cls()
        waiting = list(words)
        while waiting:
            word = waiting.pop(0)
            name, equals, value = word.partition("=")
            if name in _HYDRA:
                setattr(launch, _HYDRA[name], value if equals else waiting.pop(0) if waiting else "")
            elif not word.startswith("-") or is_override(word):
                launch.words.append(word)
        return launch


class _Seen(NamedTuple):
    values: dict[str, str]
    arrays: dict[str, list[str]]
    doubtful: set[str]
    """Variables that more than one branch of the script sets, each otherwise."""
    unknown: set[str]
    """What is not set in the script, as far as it went into another variable."""
    text: str
    """The script."""


Sourced = Callable[[str], str | None]
"""The text of a script that another one reads in by `source PATH`; None for one that is not here."""
Programs = Callable[[str], tuple[str, str] | None]
"""The trainer and the kind of a Python file by its path; None for one that is not there or holds neither."""


def launch_in(
    name: str, text: str, programs: Programs = lambda path: None, sourced: Sourced = lambda path: None
) -> Launch | None:
    """The first command in TEXT that starts a run; None where there is none, as in a YAML file.

    Raises:
        ReadError: the only command that starts anything of verl's starts no RL run.
    """
    if not any(word in text for word in ("main", "rltrain", "sft_trainer", ".py")) and not any(
        trainer.is_in(text) for trainer in trainers().values()
    ):
        return None
    text = _with_kept(text)
    seen = _Seen({}, {}, set(), set(), text)
    notes: list[str] = []
    found: Launch | None = None
    other = ""
    for words, conditional in _statements(text, seen, sourced):
        if found is None and (start := _start(words)) is not None:
            found = _command(words, start, seen, notes)
            if found is None:
                return None
        elif found is None and (foreign := _foreign(words, seen, notes, programs)) is not None:
            found = foreign
        elif found is not None and (_start(words) is not None or _started(words, seen) is not None):
            notes.append(f"{name} starts more than one run; the first was read")
            break
        else:
            other = other or _no_rl(words)
            _assign(words, seen, conditional)
    if found is None and other:
        raise ReadError(f"{name}: {other} is no RL run (fine-tuning or evaluation); give a script of an RL run")
    if found is not None:
        found.notes = tuple(dict.fromkeys(notes))
    return found


def _with_kept(text: str) -> str:
    """TEXT with what it reads from here-documents into variables in the places where these are words."""
    for kept in _KEPT.finditer(text):
        before, behind = text[: kept.start()], text[kept.end() :]
        name, body = kept[1], kept[3].strip().replace("\\", r"\\")
        filled = re.sub(rf"(?<![\"'\\\w])\$(?:{name}\b|\{{{name}\}})(?![\"'])", body, behind)
        if filled != behind:
            return before + _with_kept(filled)
    return text


def _statements(text: str, seen: _Seen, sourced: Sourced) -> Iterator[tuple[list[Word], bool]]:
    """The commands of a script, of scripts that it sources, and those that it hands to a shell (`bash -c "…"`) or
    keeps in a text."""
    for words, conditional in statements(text):
        inner = None
        if len(words) == 2 and words[0].text in ("source", "."):
            inner = sourced("".join(_expanded(words[1:], seen, [])))
        if inner is not None:
            yield from ((more, conditional or depends) for more, depends in _statements(inner, seen, lambda path: None))
            continue
        handed = next((after for before, after in pairwise(words) if before.text == "-c" and " " in after.text), None)
        kept = _kept_command(words) if handed is None else handed.text
        if kept:
            yield from ((command, conditional) for command, _ in statements(kept))
        if handed is None:
            yield words, conditional
    for document in _HERE.finditer(text):
        if re.search(r"\bpython\S* (?!-\s)|\buv run ", document[2]):
            yield from ((command, False) for command, _ in statements(document[2]))


def _kept_command(words: list[Word]) -> str:
    """The command of a trainer that is kept in a variable for later (`COMMAND="python run_grpo.py …" sbatch …`)."""
    for word in words:
        matched = _ASSIGNED.match(word.text)
        value = word.text[matched.end() :] if matched is not None else ""
        if " " in value and any(trainer.command.search(value) for trainer in trainers().values()):
            return value
    return ""


def _foreign(words: list[Word], seen: _Seen, notes: list[str], programs: Programs) -> Launch | None:
    """The command of another trainer, or of a Python file that has its settings in it."""
    texts = _texts(words, seen)
    found = _started(words, seen)
    if found is not None:
        trainer, kind, start, end = found
        return Launch(trainer.name, kind=kind, before=tuple(_expanded(words[:start], seen, [])),
                      words=_expanded(words[end:], seen, notes))  # fmt: skip
    for number, text in enumerate(texts):
        known = programs(text) if text.endswith(".py") and "$" not in text else None
        if known is not None:
            return Launch(known[0], kind=known[1], program=text, before=tuple(_expanded(words[:number], seen, [])),
                          words=_expanded(words[number + 1 :], seen, notes))  # fmt: skip
    return _adopted(words, texts, seen, notes)


def _adopted(words: list[Word], texts: list[str], seen: _Seen, notes: list[str]) -> Launch | None:
    """A Python file that nothing is known of, with the options of a trainer."""
    at = next((number for number, text in enumerate(texts) if text.endswith(".py")), None)
    if at is None:
        return None
    passed = _expanded(words[at + 1 :], seen, [])
    for trainer in trainers().values():
        if trainer.adopts(passed):
            notes.append(f"{texts[at]} is not here: by its options, it is read as a program of {trainer.title}")
            return Launch(trainer.name, kind=trainer.kind, before=tuple(_expanded(words[:at], seen, [])),
                          words=_expanded(words[at + 1 :], seen, notes), is_adopted=True)  # fmt: skip
    return None


def _started(words: list[Word], seen: _Seen) -> tuple[Trainer, str, int, int] | None:
    return started(_texts(words, seen), lambda at: _expanded(words[at:], seen, []), seen.text)


def _texts(words: list[Word], seen: _Seen) -> list[str]:
    """WORDS as they are written; those that begin with a variable, as the shell would pass them."""
    return ["".join(expand(word, seen.values, seen.arrays)[0]) if word.text[:1] == "$" else word.text for word in words]


def _expanded(words: list[Word], seen: _Seen, notes: list[str]) -> list[str]:
    """WORDS as the shell would pass them; NOTES gets what it alone knows."""
    found: list[str] = []
    for word in words:
        values, unknown = expand(word, seen.values, seen.arrays)
        notes += [_left(name) for name in unknown]
        notes += [_left(name) for name in sorted(seen.unknown) if any(f"${name}" in value for value in values)]
        notes += [_taken(name, seen) for name in sorted(seen.doubtful) if re.search(rf"\$\{{?{name}\b", word.text)]
        found += values
    return found


def _no_rl(words: list[Word]) -> str:
    """The module that WORDS start, if it is one that trains without RL or not at all; "" otherwise."""
    for before, word in pairwise(words):
        if (before.text == "-m" or word.text.endswith(".py")) and _NO_RL.fullmatch(word.text):
            return word.text
    return ""


def _start(words: list[Word]) -> int | None:
    """Where the command begins: behind `main_ppo` or what extends it, or behind `rltrain run`."""
    for number, word in enumerate(words):
        plain = word.text
        if _VERL.fullmatch(plain) or (_RECIPE.fullmatch(plain) and not _NO_RL.fullmatch(plain)):
            return number
        if plain.rsplit("/", 1)[-1] == "rltrain" and number + 1 < len(words) and words[number + 1].text == "run":
            return number
    return None


def _command(words: list[Word], start: int, seen: _Seen, notes: list[str]) -> Launch | None:
    rltrain = words[start].text.rsplit("/", 1)[-1] == "rltrain"
    launch = Launch.of_words(_expanded(words[start + (2 if rltrain else 1) :], seen, notes))
    launch.framework = "rltrain" if rltrain else "verl"
    launch.recipe = "" if _RECIPE.fullmatch(words[start].text) is None else words[start].text
    stray = [word for word in launch.words if not is_override(word)]
    launch.words = [word for word in launch.words if is_override(word)]
    if rltrain:
        if not stray:
            return None
        launch.config_name = stray[0]
    else:
        strange = [word for word in stray if word.strip('$@"')]
        notes += [f"{word!r} on the command line is no override and {_IS_LEFT_OUT}" for word in strange]
    return launch


def grows_segments(text: str) -> bool | None:
    """What a script tells torch's allocator of segments that grow; None where it says nothing."""
    told = _SEGMENTS.findall(text)
    return None if not told else told[-1].lower() == "true"


def leaves_words_out(notes: Sequence[str]) -> bool:
    """Whether NOTES name words that only the shell knows, which may be any options."""
    return any(note.endswith(_IS_LEFT_OUT) and note.lstrip("'").startswith("$") for note in notes)


def _left(name: str) -> str:
    if name.startswith(("(", "`")):
        return f"{name if name[0] == '`' else f'${name}'} is not run and is left as it is"
    if name.endswith("[@]"):
        return f"${{{name}}} is not set in the script, {_IS_LEFT_OUT}"
    return f"${name.strip('{}')} is not set in the script and is left as it is"


def _taken(name: str, seen: _Seen) -> str:
    return f"${name} depends on a condition in the script; taken as {seen.values.get(name, '')!r}"


def _assign(words: list[Word], seen: _Seen, conditional: bool) -> None:
    """Follow `NAME=value …`, `NAME=( … )` and `: ${NAME:=value}`; later words of the statement are a command's."""
    for word in words:
        if word.text in ("export", "declare", "local", "readonly", "-x", "-a", ":"):
            expand(word, seen.values, seen.arrays)
            continue
        if word.items is not None:
            values: list[str] = []
            for item in word.items:
                found, unknown = expand(item, seen.values, seen.arrays)
                values += found
                seen.unknown.update(unknown)
            seen.arrays[word.name] = [*(seen.arrays.get(word.name, []) if word.appends else []), *values]
            continue
        matched = _ASSIGNED.match(word.text)
        if matched is None:
            if word.text.startswith("${"):
                expand(word, seen.values, seen.arrays)
            return
        found, unknown = expand(word.behind(matched.end()), seen.values, seen.arrays, split=False)
        seen.unknown.update(unknown)
        value = "".join(found)
        value = (seen.values.get(matched[1], "") if matched[2] else "") + value
        if conditional and seen.values.get(matched[1], value) != value:
            seen.doubtful.add(matched[1])
        else:
            seen.values[matched[1]] = value
            seen.doubtful.discard(matched[1])
