"""Read a verl config: defaults of a version, a YAML over them, overrides as Hydra applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rlcheck.measure.config import verl_data, verl_keys
from rlcheck.measure.config.compose import Layers, compose
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.document import Document
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.interpolate import MISSING, Resolver
from rlcheck.measure.config.overrides import Override, read_overrides
from rlcheck.measure.config.trees import (
    NoKeyError,
    Tree,
    as_tree,
    copied,
    find,
    flatten,
    has,
    merge,
    put,
    remove,
    unflatten,
)

_GROUPS = ("model_engine",)


def read_verl(
    source: str,
    document: Document | None,
    words: Sequence[str],
    *,
    version: str = "",
    config_name: str = "",
    directory: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The config of DOCUMENT (None: verl's own) with the overrides WORDS.

    Args:
        source: what messages call it.
        version: of verl; "": the newest that is known.
        config_name: verl's own file that the run starts from, where that is not `ppo_trainer`.
        directory: where files of the document's `defaults` may lie; None: not looked at.
        environ: for `oc.env`.
    """
    known = _version(version)
    overrides, problems = read_overrides(words, hydra=True, groups=_GROUPS)
    config = Config("verl", source, version=known, problems=problems)
    if version and version != known:
        config.unsure_keys = f"verl {version} is not known, read as {known}"
    layers = compose(document, directory) if document is not None else Layers()
    config.problems += layers.problems
    config.notes += layers.notes
    config.given |= layers.places
    config.engine = _engine(config, overrides, layers, config_name)
    defaults = verl_data.defaults(known, config.engine)
    tree: Tree = copied(unflatten(defaults))
    _rename_moved(config, layers.tree, defaults)
    _refuse_values_for_sections(config, tree, layers.tree, "")
    merge(tree, layers.tree)
    for override in overrides:
        _apply(config, tree, override, defaults)
    _finish(config, tree, defaults, environ)
    verl_keys.judge_file(config, layers, defaults)
    return config


def _version(version: str) -> str:
    """The release that is read for VERSION: itself, or the nearest that is known.

    Raises:
        ReadError: it is no version.
    """
    known = verl_data.versions()
    if version and not _number(version):
        raise ReadError(f"--framework verl@{version}: no version; known are {', '.join(known)}")
    if not version or version in known:
        return version or known[0]
    older = [name for name in known if _number(name) <= _number(version)]
    return older[0] if older else known[-1]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _engine(config: Config, overrides: Sequence[Override], layers: Layers, config_name: str) -> str:
    """The model engine: as chosen, or as the sections of a full dump show."""
    chosen = next((str(one.value) for one in reversed(overrides) if one.key == "model_engine"), "")
    wanted = chosen or layers.groups.get("model_engine", "")
    chosen_files = [*layers.bases, *(file for group, file in layers.groups.items() if group.startswith("actor@"))]
    if not wanted and any("megatron" in name for name in (config_name, *chosen_files)):
        wanted = "megatron"
    if not wanted:
        sections = as_tree(_at(layers.tree, "actor_rollout_ref.actor")) or {}
        wanted = next((name for name in ("megatron", "torchtitan", "veomni") if name in sections), "dp")
    have = verl_data.engines(config.version)
    if wanted in have:
        return wanted
    nearest = "megatron" if wanted == "mindspeed" else "dp"
    config.notes.append(f"defaults of model_engine={wanted} are not known; read with those of {nearest}")
    return nearest


def _refuse_values_for_sections(config: Config, below: Tree, over: Tree, prefix: str) -> None:
    """Drop from OVER, in place, what is one value where verl has a section with keys, and say so."""
    for name, value in list(over.items()):
        section, inner = as_tree(below.get(name)), as_tree(value)
        if section and inner is not None:
            _refuse_values_for_sections(config, section, inner, f"{prefix}{name}.")
        elif section and not (value is None and "_target_" in section) and "${" not in str(value):
            said = f"expected a section with keys such as {next(iter(section))}, got {shown(value)!r}"
            config.problem("type", f"{prefix}{name}", said, value=shown(value))
            del over[name]


def _rename_moved(config: Config, tree: Tree, defaults: Mapping[str, Any]) -> None:
    """Say of keys in a file that they moved, and read them where they are now."""
    for key, value in list(flatten(tree)):
        target = verl_keys.moved_to(key, defaults)
        if target is not None and not has(tree, target) and target in defaults:
            put(tree, target.split("."), value)
            config.given.setdefault(target, config.place(key))


def _apply(config: Config, tree: Tree, override: Override, defaults: Mapping[str, Any]) -> None:
    """One override, as Hydra applies it: what it refuses is noted, and done as it was meant."""
    key = override.key
    if override.group or key.split(".")[0].split("/")[0] == "hydra":
        if key == "model_engine":
            verl_keys.judge_engine(config, override)
        if override.group and key != "model_engine" and not key.startswith("hydra"):
            config.notes.append(f"{override.text}: chooses a file of a config group, which is not read")
        return
    if override.sign == "~":
        if not remove(tree, key):
            verl_keys.refuse(config, override, "Hydra refuses to delete a key that is not there; drop the override")
        config.given.pop(key, None)
        return
    present, value = has(tree, key), cast(object, override.value)
    if present and verl_keys.is_left_to_shell(config, override, defaults):
        config.given[key] = override.place
        return
    for old in [name for name in config.given if name.startswith(f"{key}.")]:
        del config.given[old]
    config.given[key] = override.place
    if present and override.sign == "+" and not isinstance(value, dict | list):
        if _at(tree, key) is not None:
            verl_keys.refuse(config, override, "is there already and Hydra refuses `+` for it; drop the +")
    elif not present:
        verl_keys.judge_override(config, override, defaults)
        target = verl_keys.moved_to(key, defaults)
        if target is not None and target in defaults and target not in config.given:
            put(tree, target.split("."), value)
            config.given[target] = override.place
    old_value = _at(tree, key) if present else None
    if isinstance(old_value, dict) and isinstance(value, dict):
        merge(cast(Tree, old_value), cast(Tree, value))
    else:
        put(tree, key.split("."), value)


def _at(tree: Tree, key: str) -> Any:
    try:
        return find(tree, key.split("."))
    except NoKeyError:
        return None


def _finish(config: Config, tree: Tree, defaults: Mapping[str, Any], environ: Mapping[str, str] | None) -> None:
    resolver = Resolver(tree, environ)
    resolved = resolver.resolved()
    config.values = dict(_flat(resolved, "", defaults))
    for key, why in resolver.wrong.items():
        raw = shown(_at(tree, key))
        if config.place(key).file or config.place(key).text:
            config.problem("missing", key, f"{raw} {why}", value=raw)
    for key, why in resolver.unresolved.items():
        raw = shown(_at(tree, key))
        if key in config.given:  # a default that follows such a key needs no word of its own
            config.problem("unresolved", key, f"{raw} is left as it is: {why}", value=raw)
    _require(config)
    verl_keys.judge_values(config, defaults)


def _flat(tree: Tree, prefix: str, defaults: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Dotted keys; mappings that verl takes as a value (`override_config`) stay whole."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", as_tree(value)
        if inner and key not in defaults:
            found += _flat(inner, f"{key}.", defaults)
        else:
            found.append((key, value))
    return found


def _require(config: Config) -> None:
    """Keys that must be given, where the run reads them."""
    for key, value in config.values.items():
        if value != MISSING or key.startswith(("reward.reward_model.", "distillation.")):
            continue
        example = "=vllm" if key.endswith(".name") else "=VALUE"
        config.problem("missing", key, f"must be given, such as {key}{example}")
