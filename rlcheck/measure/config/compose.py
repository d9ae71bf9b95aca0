"""Hydra's `defaults` list of a file: which of verl's own configs it starts from, and files of its own beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rlcheck.facts.config import KeyProblem, Place
from rlcheck.measure.config.document import Document, parse
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.trees import Tree, copied, merge, put

# verl's own primary configs. Their content is what verl_data.defaults gives.
VERLS_OWN = ("ppo_trainer", "ppo_megatron_trainer")
# Files of verl's own groups, which its defaults hold already: `dp_actor`, `${model_engine}_ref`, `hf_model`, …
_VERLS_FILE = re.compile(
    r"(?:actor|ref|critic)/(?:(?:dp|megatron|torchtitan|veomni|mindspeed|\$\{model_engine\})_)?(?:actor|ref|critic)"
    r"|model/hf_model|rollout/rollout|data/legacy_data|reward/reward|algorithm/rollout_correction|profiler/profiler"
    r"|distillation/distillation|transfer_queue/transfer_queue|npu_profile/npu_profile|legacy_reward_impl"
    r"|(?:engine|optim)/\w+|reward_model/\w+"
)
_MAX_FILES = 50


@dataclass
class Layers:
    """What the user's files say together, defaults of verl left out."""

    tree: Tree = field(default_factory=dict[str, Any])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    problems: list[KeyProblem] = field(default_factory=list[KeyProblem])
    notes: list[str] = field(default_factory=list[str])
    groups: dict[str, str] = field(default_factory=dict[str, str])
    """Groups that a file chose, such as `model_engine`."""
    bases: tuple[str, ...] = ()
    """verl's own files that it starts from."""
    files: int = 0


def compose(document: Document, directory: Path | None) -> Layers:
    """DOCUMENT with the files that its `defaults` name.

    Args:
        document: what was parsed.
        directory: where further files are looked for; None: nowhere.
    """
    layers = Layers()
    _add(layers, document, directory, "")
    layers.tree.pop("hydra", None)
    layers.tree.pop("defaults", None)
    return layers


def _add(layers: Layers, document: Document, directory: Path | None, package: str) -> None:
    layers.files += 1
    if layers.files > _MAX_FILES:
        layers.notes.append(f"{document.name}: its `defaults` name too many files; the rest was not read")
        return
    layers.problems += document.problems
    entries = document.tree.get("defaults")
    own_done = False
    for entry in cast("list[Any]", entries) if isinstance(entries, list) else []:
        if entry == "_self_":
            _own(layers, document, package)
            own_done = True
        else:
            _entry(layers, document, entry, directory, package)
    if not own_done:
        _own(layers, document, package)


def _own(layers: Layers, document: Document, package: str) -> None:
    content = {name: value for name, value in document.tree.items() if name != "defaults"}
    places = {key: place for key, place in document.places.items() if key.split(".")[0] not in ("defaults", "hydra")}
    if package:
        wrapped: Tree = {}
        put(wrapped, package.split("."), content)
        content, places = wrapped, {f"{package}.{key}": place for key, place in places.items()}
    for key in places:
        for old in [name for name in layers.places if name.startswith(f"{key}.") and name not in places]:
            del layers.places[old]
    merge(layers.tree, copied(content))
    layers.places |= places


def _entry(layers: Layers, document: Document, entry: Any, directory: Path | None, package: str) -> None:
    """One line of a `defaults` list: a file, or a group and what is chosen of it."""
    if isinstance(entry, str):
        name = entry.split("@")[0].removesuffix(".yaml").lstrip("/")
        if name.rsplit("/", 1)[-1] in VERLS_OWN:
            layers.bases = (*layers.bases, name.rsplit("/", 1)[-1])
            return
        target = entry.partition("@")[2]
        _file(layers, document, name, directory, _package(package, target, name.rpartition("/")[0]))
        return
    if not isinstance(entry, dict):
        return
    for group, choice in cast("dict[str, Any]", entry).items():
        words = group.split()
        bare = words[-1] if words else ""
        if "optional" in words and choice is None:
            continue
        layers.groups[bare] = str(choice)
        if bare == "model_engine" or not isinstance(choice, str):
            continue
        folder, _, target = bare.partition("@")
        _file(layers, document, f"{folder.lstrip('/')}/{choice}", directory, _package(package, target, folder))


def _package(above: str, target: str, group: str) -> str:
    """Where a file's content goes: as `@` says, else by the folder that it is in."""
    own = target or group.strip("/").replace("/", ".")
    if own.startswith("_global_"):
        return own.removeprefix("_global_").lstrip(".")
    return ".".join(part for part in (above, own.removeprefix("_here_").lstrip(".")) if part)


def _file(layers: Layers, document: Document, name: str, directory: Path | None, package: str) -> None:
    if _VERLS_FILE.fullmatch(name):
        return
    path = None if directory is None else directory / f"{name}.yaml"
    if path is None or not path.is_file():
        layers.notes.append(f"{document.name}: `defaults` names {name}, which was not found and is not read")
        return
    try:
        inner = parse(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ReadError) as error:
        layers.notes.append(f"{path}: not read: {error}")
        return
    _add(layers, inner, directory, package)
