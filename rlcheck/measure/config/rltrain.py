"""Read a config of rltrain as its own loader does: file, overrides, verl's names, interpolations, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config import rltrain_keys, rltrain_roles
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.document import Document
from rlcheck.measure.config.interpolate import MISSING, Resolver
from rlcheck.measure.config.overrides import Override, read_overrides
from rlcheck.measure.config.rltrain_data import TRAINER, keys, leaf_above, recipe_names, sections
from rlcheck.measure.config.trees import NoKeyError, Tree, as_tree, copied, find, merge, put, remove, unflatten

__all__ = ["read_rltrain", "recipe_file", "recipe_names", "rltrain_spec"]


def recipe_file(source: str) -> Path | None:
    """The file of the recipe SOURCE, or None if there is no such recipe."""
    return TRAINER / "recipes" / f"{source}.yaml" if source in recipe_names() else None


def read_rltrain(source: str, document: Document, words: Sequence[str], *, environ: Mapping[str, str] | None) -> Config:
    """The config of DOCUMENT with the overrides WORDS, defaults filled in; nothing is resolved for a machine yet."""
    config = Config("rltrain", source, problems=list(document.problems), given=dict(document.places))
    overrides, problems = read_overrides(words, hydra=False)
    config.problems += problems
    tree: Tree = copied(document.tree)
    for override in overrides:
        _apply(config, tree, override)
    written = dict(_flatten(tree, ""))
    defaults = _defaults(written)
    merged = unflatten(defaults)
    merge(merged, unflatten(written))
    resolver = Resolver(merged, environ)
    resolved = resolver.resolved()
    for key, why in resolver.wrong.items():
        if key in written:
            config.problem("missing", key, f"{shown(written[key])} {why}", value=shown(written[key]))
    for key, why in resolver.unresolved.items():
        config.problem("unresolved", key, f"{shown(written.get(key))} is left as it is: {why}")
    user = {key: _at(resolved, key) for key in written}
    rltrain_keys.use_own_names(config, user, written)
    config.values = {**{key: _at(resolved, key) for key in defaults}, **user}
    rltrain_keys.judge_values(config, user)
    return config


def rltrain_spec(config: Config) -> RunSpec:
    """CONFIG in the words of `RunSpec`."""
    return rltrain_roles.spec_of(config)


def _apply(config: Config, tree: Tree, override: Override) -> None:
    key = override.key
    if override.sign == "~":
        if not remove(tree, key):
            config.given[key] = override.place
            config.problem("refused", key, f"{config.source} has no such key to remove; drop the override")
        for name in [name for name in config.given if name == key or name.startswith(f"{key}.")]:
            del config.given[name]
        return
    for name in [name for name in config.given if name.startswith(f"{key}.")]:
        del config.given[name]
    config.given[key] = override.place
    above, new = _at(tree, key), override.value
    if isinstance(above, dict) and isinstance(new, dict):
        put(tree, key.split("."), _merged(above, new))  # pyright: ignore[reportUnknownArgumentType]
    else:
        put(tree, key.split("."), new)


def _merged(base: Tree, over: Tree) -> Tree:
    found = copied(base)
    merge(found, over)
    return found


def _at(tree: Any, key: str) -> Any:
    try:
        return find(tree, key.split("."))
    except NoKeyError:
        return None


def _flatten(tree: Tree, prefix: str) -> list[tuple[str, Any]]:
    """Dotted keys; mappings that are a value (`toy.model`) stay whole, sections that hold nothing are left out."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", as_tree(value)
        if inner and leaf_above(key) is None:
            found += _flatten(inner, f"{key}.")
        elif key not in sections() or value not in (None, {}):
            found.append((key, value))
    return found


def _defaults(written: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's defaults; the toy is the one section that is not there by default."""
    with_toy = any(key == "toy" or key.startswith("toy.") for key in written)
    return {
        key: MISSING if leaf.required else copied(leaf.default)
        for key, leaf in keys().items()
        if with_toy or not key.startswith("toy.")
    }
