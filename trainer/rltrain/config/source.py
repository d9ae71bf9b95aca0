"""Where a config comes from: a recipe or a file, with overrides, and the place of every key in them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltrain.config.messages import expected, shown
from rltrain.config.names import RUN, SFT, Vocabulary
from rltrain.config.paths import unusable
from rltrain.core.errors import UserError, first_line
from rltrain.recipes import recipe_names

_KEY = r"[\w\-]+(?:\.[\w\-]+|\[\d+\])*"
_OVERRIDE = re.compile(rf"(?P<sign>\+\+|\+|~)?(?P<key>{_KEY})(?P<given>=(?P<value>.*))?", re.DOTALL)
# Deeper than any config; YAML anchors can make a node its own descendant.
_MAX_DEPTH = 30
# Characters of an override in a message: all of one that a person typed.
_MAX_SHOWN = 300


@dataclass(frozen=True)
class Source:
    """A config as it was written, overrides applied, nothing validated."""

    name: str
    """What messages call it: `toy-ppo.yaml`."""
    text: str
    """The file, before overrides."""
    tree: DictConfig
    places: dict[str, str]
    """Dotted key to `file:line` or the override that set it."""

    def place(self, key: str) -> str:
        """Where KEY was set, or else the nearest section above it that was."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            found = self.places.get(".".join(parts[:length]))
            if found is not None:
                return found
        return self.name


def read(source: str | Path, overrides: Sequence[str] = (), words: Vocabulary = RUN) -> Source:
    """Read the recipe or file SOURCE and apply OVERRIDES to it.

    Args:
        source: name of a recipe, or path of a YAML file.
        overrides: `a.b=VALUE` (VALUE is YAML; a leading `+` or `++` changes nothing) or `~a.b`, which removes a key.

    Raises:
        UserError: no such recipe or file, not YAML, or an override that cannot be read.
    """
    path = _find(source, words)
    text = _text(path)
    name = path.name if path.parent == words.recipes else str(source)
    written = found = _parse(name, text)
    for override in overrides:
        found = _override(found, override, words)
    return _without_former_resume(written, found)


def _without_former_resume(written: Source, found: Source) -> Source:
    """FOUND, less the file's path to resume from where an override of the mode replaces it: they are one setting.

    A message that says how to go on names the mode alone, and must hold for a file that itself went on from a path.
    """
    mode, path = "trainer.resume_mode", "trainer.resume_from_path"
    is_replaced = found.places.get(mode) != written.places.get(mode)
    is_files = path in found.places and found.places[path] == written.places.get(path)
    if is_replaced and is_files and OmegaConf.select(found.tree, mode) != "resume_path":
        return _removed(found, mode, path)
    return found


def _find(source: str | Path, words: Vocabulary) -> Path:
    names = recipe_names(words.recipes)
    if str(source) in names:
        return words.recipes / f"{source}.yaml"
    if (why := unusable(source)) is not None:
        raise UserError(why)
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        raise UserError(f"{path.resolve()} is a directory; give a YAML file or a recipe: {', '.join(names)}")
    if not path.exists():
        near = difflib.get_close_matches(str(source), names, n=1)
        meant = f"; did you mean '{near[0]}'?" if near else ""
        other = next((one for one in (RUN, SFT) if str(source) in recipe_names(one.recipes)), None)
        if other is not None:
            meant = f"; it is one of `rltrain {other.command}`"
        raise UserError(f"no recipe '{source}' ({', '.join(names)}) and no file {path.resolve()}{meant}")
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); a config is a YAML file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(name: str, text: str) -> Source:
    try:
        compose = cast("Callable[..., yaml.Node | None]", yaml.compose)  # pyright: ignore[reportUnknownMemberType]
        root = compose(text, Loader=yaml.SafeLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise UserError(f"{name}:{root.start_mark.line + 1}: expected sections such as `trainer:`, not one value")
        tree = OmegaConf.create(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise UserError(f"{name}{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{name}: not YAML: {_reason(error)}") from None
    return Source(name, text, cast(DictConfig, tree), {key: f"{name}:{line}" for key, line in _lines(root, "", 0)})


def _lines(node: yaml.Node | None, prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    if depth > _MAX_DEPTH:
        return
    children: list[tuple[str, int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(i), value.start_mark.line + 1, value) for i, value in enumerate(node.value)]
    for key, line, value in children:
        yield f"{prefix}{key}", line
        yield from _lines(value, f"{prefix}{key}.", depth + 1)


def _override(source: Source, override: str, words: Vocabulary) -> Source:
    matched = _OVERRIDE.fullmatch(override)
    if matched is None:
        raise UserError(f"{_called(override)}: expected key=value, such as trainer.total_epochs=2")
    # `a[0].b` and `a.0.b` are the same key.
    key = matched["key"].replace("[", ".").replace("]", "")
    parts = key.split(".")
    if len(parts) > _MAX_DEPTH:
        raise UserError(f"{_called(override)}: a key of {len(parts)} parts is deeper than any config")
    if matched["sign"] == "~":
        return _removed(source, override, key)
    if matched["given"] is None:
        raise UserError(f"{_called(override)}: expected {key}=value; to remove a key write ~{key}")
    tree = source.tree.copy()
    old = _expect_container(OmegaConf.to_container(tree, resolve=False), override, parts, words)
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={matched['value']}"]), resolve=False)
        new: Any = cast(dict[str, Any], value)["value"]
        # A list or a value is replaced; only sections are merged.
        OmegaConf.update(tree, key, new, merge=isinstance(new, dict) and isinstance(old, dict))
    except (yaml.YAMLError, OmegaConfBaseException, TypeError, ValueError) as error:
        raise UserError(f"{_called(override)}: {_reason(error)}") from None
    except RecursionError:
        raise UserError(f"{_called(override)}: a value nested deeper than any config") from None
    kept = {name: place for name, place in source.places.items() if not f"{name}.".startswith(f"{key}.")}
    return replace(source, tree=tree, places={**kept, key: _called(override)})


def _called(override: str) -> str:
    """What messages call OVERRIDE."""
    return f"override '{override if len(override) <= _MAX_SHOWN else override[:_MAX_SHOWN] + '...'}'"


def _expect_container(tree: Any, override: str, parts: Sequence[str], words: Vocabulary) -> Any:
    """The value in TREE of the key of PARTS, None where there is none; every part above it can hold the next."""
    node = tree
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        if isinstance(node, list):
            entries = cast(list[Any], node)
            if not part.isdecimal() or int(part) >= len(entries):
                numbers = f"its entries are 0 to {len(entries) - 1}" if entries else "it is empty"
                raise UserError(f"{_called(override)}: {above} is a list, {numbers}; '{part}' is none of them")
            node = entries[int(part)]
        elif isinstance(node, dict):
            node = cast(dict[Any, Any], node).get(part)
        elif node is None or (isinstance(node, str) and "${" in node):
            _expect_mapping_key(override, above, words)
            return None
        else:
            raise UserError(f"{_called(override)}: {above} is {shown(node)}, which holds no '{part}'")
    return node


def _expect_mapping_key(override: str, key: str, words: Vocabulary) -> None:
    """KEY, which is not set, is no key of one value: those of a mapping or of a section can be set one by one."""
    leaf = words.leaves().get(key)
    if leaf is not None and not any(dict in (kind, get_origin(kind)) for kind in leaf.types):
        raise UserError(f"{_called(override)}: {key} is {expected(leaf.types)}; give it whole: {key}=VALUE")


def _removed(source: Source, override: str, key: str) -> Source:
    raw = cast(dict[str, Any], OmegaConf.to_container(source.tree, resolve=False))
    *above, last = key.split(".")
    section: Any = raw
    for part in above:
        section = cast(dict[str, Any], section).get(part) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section:
        raise UserError(f"{_called(override)}: {source.name} has no key '{key}' to remove")
    del section[last]
    kept = {name: place for name, place in source.places.items() if not f"{name}.".startswith(f"{key}.")}
    return replace(source, tree=OmegaConf.create(raw), places=kept)


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return error.problem
    return first_line(error)
