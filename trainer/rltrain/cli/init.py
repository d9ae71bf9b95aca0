"""The text of `rltrain init`: every key of a run config with its default and what it does, to start from."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from rltrain.cli.requests import InitRequest
from rltrain.config import names
from rltrain.config.engines import ENGINES
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError

WIDTH = 120
_HEAD = """\
A run config of rltrain: every key there is. Keys behind a # have their default; remove the # to change one.
Keys at ??? must be given, here or on the command line:  rltrain run THIS_FILE data.train_files=train.parquet
A value may refer to another key, as ${trainer.project_name}. Key names are verl's, where verl has the key."""
# What a first run cannot do without, although the schema lets it be null (a `toy` section would do as well), or off.
_GIVEN: dict[str, Any] = {
    "actor_rollout_ref.model.path": "???",
    "actor_rollout_ref.rollout.name": next(iter(ENGINES)),
    "data.train_files": "???",
    "data.val_files": "???",
    "reward_model.rules": [{"kind": "math"}],
    "trainer.save_freq": 20,
}


def init_text() -> str:
    """A commented config in YAML that loads once the keys at `???` are given."""
    return "\n".join([*_comment(_HEAD, 0), "", *_section(RunConfig, "", 0)]) + "\n"


def _section(section: type[BaseModel], prefix: str, depth: int) -> Iterator[str]:
    for name in section.model_fields:
        key = f"{prefix}{name}"
        if key not in names.sections():
            yield from _key(key, name, depth)
            continue
        inner = names.sections()[key]
        lines = list(_section(inner, f"{key}.", depth + 1))
        yield from _comment(_words(inner, key), depth)
        # The toy replaces data and model, so it is off until asked for.
        off = key == "toy"
        yield from (_off(line) if off else line for line in [f"{_indent(depth)}{name}:", *lines])
        if depth == 0:
            yield ""


def _words(section: type[BaseModel], key: str) -> str:
    """What is said of SECTION at KEY: its place's own words, where there are some, else its docstring."""
    above, _, name = key.rpartition(".")
    own = names.words_of(names.sections()[above]).get(name) if above else None
    # The docstring begins with the section's own name, which is below anyway.
    words = own or re.sub(r"^(`[\w.]+`(, )?)+[.:]? ?", "", inspect.cleandoc(section.__doc__ or ""))
    return words[:1].upper() + words[1:]


def _key(key: str, name: str, depth: int) -> Iterator[str]:
    leaf = names.leaves()[key]
    choices = [
        str(value) for kind in leaf.types if typing.get_origin(kind) is Literal for value in typing.get_args(kind)
    ]
    above = key.rpartition(".")[0]
    said = names.words_of(names.sections()[above] if above else RunConfig).get(name, "")
    words = [said, f"One of {', '.join(choices)}." if choices else ""]
    yield from _comment(" ".join(" ".join(words).split()), depth)
    given = key in _GIVEN
    line = f"{_indent(depth)}{name}: {_value(_GIVEN[key] if given else leaf.default)}"
    yield line if given else _off(line)


def _value(value: Any) -> str:
    plain = list(typing.cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _comment(text: str, depth: int) -> Iterator[str]:
    for paragraph in text.splitlines():
        for line in textwrap.wrap(paragraph, WIDTH - 2 - 2 * depth):
            yield f"{_indent(depth)}# {line}"


def _off(line: str) -> str:
    """LINE, a key, commented out: `#key`, where prose is `# words`."""
    bare = line.lstrip()
    return line if bare.startswith("#") else f"{line[: len(line) - len(bare)]}#{bare}"


def _indent(depth: int) -> str:
    return "  " * depth


def run(request: InitRequest) -> int:
    """Write the commented config; returns the exit code.

    Raises:
        UserError: something is there already, or the file cannot be written.
    """
    path = request.path
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(init_text())
    except FileExistsError:
        raise UserError(f"{path} exists already: name another file, or remove it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    print(f"Wrote {path}. Next: rltrain run {path} --dry-run")  # noqa: T201
    return 0
