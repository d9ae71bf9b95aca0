"""Which framework a config is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rlcheck.measure.config.document import Document
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.rltrain_data import keys as rltrain_keys
from rlcheck.measure.config.spec_file import is_spec
from rlcheck.measure.config.trainer import Key, Trainer, layout, row_of
from rlcheck.measure.config.trainer import versions as trainer_versions
from rlcheck.measure.config.trainers import trainers
from rlcheck.measure.config.trees import flatten, has
from rlcheck.measure.config.verl_data import defaults, versions
from rlcheck.tables import table_text

_RLTRAIN_ONLY = ("toy", "sft_warmup", "reward_model.rules", "reward_model.timeout_s", "trainer.num_cpu_ranks")
_HYDRAS = ("hydra", "defaults")
_VERL_ONLY = ("global_profiler", "reward", "transfer_queue", "actor_rollout_ref.actor._target_")


def framework_of(document: Document | None) -> str:
    """rltrain, verl, spec or another trainer.

    A config that verl and rltrain could read is verl's unless all keys are rltrain's.
    """
    if document is None:
        return "verl"
    tree = document.tree
    if is_spec(document):
        return "spec"
    if any(has(tree, key) for key in _RLTRAIN_ONLY):
        return "rltrain"
    heir = next((trainer.name for trainer in trainers().values() if _names_files(tree.get(trainer.inherits))), "")
    if heir:
        return heir
    written = [key for key, _ in flatten(tree)]
    if any(has(tree, key) for key in _HYDRAS):
        return _other(written) or "verl"
    if any(has(tree, key) for key in _VERL_ONLY):
        return "verl"
    if written and all(_known(key) for key in written):
        return "rltrain"
    return _other(written) or "verl"


def _names_files(value: object) -> bool:
    names = cast("list[object]", value) if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name.endswith((".yaml", ".yml")) for name in names)


def _other(written: list[str]) -> str:
    """The trainer that reads files and has most of the keys WRITTEN, if that is half of them and more than verl has."""
    counts = {"": sum(key in defaults(versions()[0], "dp") for key in written)}
    # To make keys of a table takes longer than to see in its text that it has too few of these.
    bounds = {name: _at_most(name, written) for name, trainer in trainers().items() if trainer.documents}
    for name in sorted(bounds, key=lambda name: -bounds[name]):
        if bounds[name] < max(counts.values()) or bounds[name] * 2 < len(written):
            break
        trainer = trainers()[name]
        kinds = {trainer.kind, *trainer.kinds.values(), *trainer.sections.values()} - {""}
        counts[name] = max(_num_known(name, kind, written) for kind in kinds)
    best = max(("", *bounds), key=lambda name: counts.get(name, 0))
    return best if counts[best] * 2 >= len(written) and counts[best] else ""


def _at_most(name: str, written: list[str]) -> int:
    """How many keys WRITTEN the table of the trainer NAME may know: those whose last name, or the one above it, ends a
    name in its text."""
    text = table_text(f"trainers/{name}")
    ends = {part: f'{part}"'.encode() in text for key in written for part in key.split(".")[-2:]}
    return sum(any(ends[part] for part in key.split(".")[-2:]) for key in written)


def kind_of(trainer: Trainer, document: Document) -> str:
    """The kind that a top section of the document shows; else the one whose keys it has most of, the trainer's usual
    one where others have no more.

    Raises:
        ReadError: the section is of no RL run.
    """
    written = dict(flatten(document.tree))
    shown = next((name for name in trainer.sections if _shows(name, document, written)), None)
    if shown is not None:
        if not trainer.sections[shown]:
            raise ReadError(f"{document.name}: `{shown}` of {trainer.title} is no RL run; give a config of one")
        return trainer.sections[shown]
    kinds = list(dict.fromkeys((trainer.kind, *trainer.kinds.values())))
    tables = {kind: layout(trainer.name, trainer_versions(trainer.name)[0], kind).keys for kind in kinds}
    return max(kinds, key=lambda kind: sum(_takes(tables[kind], key, value) for key, value in written.items()))


def _shows(sign: str, document: Document, written: Mapping[str, object]) -> bool:
    key, equals, value = sign.partition("=")
    return written.get(key) == value if equals else key in document.tree


def _takes(keys: Mapping[str, Key], key: str, value: object) -> bool:
    """Whether KEYS have KEY, and not as a section where VALUE is none."""
    row = row_of(keys, key)
    return row is not None and (row.types != ("dict",) or value is None or isinstance(value, dict))


def _num_known(name: str, kind: str, written: list[str]) -> int:
    keys = layout(name, trainer_versions(name)[0], kind).keys
    above = {key for key, row in keys.items() if not row.section}
    return sum(row_of(keys, key) is not None or key.rpartition(".")[0] in above for key in written)


def _known(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:length]) in rltrain_keys() for length in range(len(parts), 0, -1))
