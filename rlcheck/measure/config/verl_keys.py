"""What there is to say about keys of a verl config: unknown, moved, deprecated, of another type than verl's default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlcheck.facts.config import KeyProblem
from rlcheck.measure.config import verl_data
from rlcheck.measure.config.compose import Layers
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.overrides import Override
from rlcheck.measure.config.trees import flatten

# Sections that take keys of the user's own: arguments of Ray, of an engine, of a function, names of teachers.
_FREE = (
    "ray_kwargs.ray_init",
    "distillation.teacher_models",
    "reward.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "custom_reward_function.reward_kwargs",
    "reward_model.reward_kwargs",
    "transfer_queue",
    "global_profiler.global_tool_config",
    "trainer.v1.sampler",
)
_FREE_WORDS = (
    "override_transformer_config",
    "override_ddp_config",
    "engine_kwargs",
    "override_config",
    "override_mcore_model_config",
)


def moved_to(key: str, defaults: Mapping[str, Any]) -> str | None:
    """Where KEY, which DEFAULTS do not have, is now; None if it did not move."""
    return None if key in defaults else _mapped(verl_data.moves().moved, key)


def _mapped(table: Mapping[str, str], key: str) -> str | None:
    if key in table:
        return table[key]
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:length]) + "."
        if section in table:
            new = table[section]
            return f"{new}{'.'.join(parts[length:])}" if new.endswith(".") else new
    return None


def refuse(config: Config, override: Override, message: str) -> None:
    """Note that Hydra refuses OVERRIDE."""
    config.problems.append(
        KeyProblem(kind="refused", key=override.key, message=message, place=override.place, value=shown(override.value))
    )


def is_left_to_shell(config: Config, override: Override, defaults: Mapping[str, Any]) -> bool:
    """Whether a number or a flag is set to what only the shell knows, such as `$BATCH`; then the default counts."""
    value, usual = override.value, defaults.get(override.key)
    left = isinstance(value, str) and (("$" in value and "${" not in value) or "`" in value)
    if not left or not (isinstance(usual, int | float) or "${" in str(usual)):
        return False
    message = f"{value} is known only to the shell; {shown(usual)} is taken"
    config.problems.append(KeyProblem("unresolved", override.key, message, override.place, value=str(value)))
    return True


def judge_engine(config: Config, override: Override) -> None:
    """`model_engine=…` chooses a file of verl's; a release has its own choice of them."""
    choices, wanted = verl_data.choices(config.version), str(override.value)
    if wanted in choices or "$" in wanted:
        return
    other = "; use --config-name=ppo_megatron_trainer" if wanted == "megatron" else ""
    refuse(config, override, f"verl {config.version} has model_engine {', '.join(choices)}, not {wanted}{other}")


def judge_override(config: Config, override: Override, defaults: Mapping[str, Any]) -> None:
    """An override of a key that is not there: Hydra takes it with `+` only, verl's classes not even then."""
    plus = override.sign in ("+", "++")
    found = _judge(override.key, config, defaults, is_added=plus)
    if found is None and plus:
        return
    if found is None or (found.kind == "unread" and not plus):
        near = found.instead if found is not None else ()
        message = "is not in verl's config, and Hydra adds a key only with `+`"
        found = KeyProblem(kind="unknown", key=override.key, message=message, instead=near or (f"+{override.key}",))
    config.problems.append(_placed(found, override.place, shown(override.value)))


def judge_file(config: Config, layers: Layers, defaults: Mapping[str, Any]) -> None:
    """Keys of the user's files, which Hydra merges whatever they are."""
    for key, value in flatten(layers.tree):
        if key not in defaults and not key.endswith("._target_"):
            found = _judge(key, config, defaults, is_added=True)
            if found is not None:
                config.problems.append(_placed(found, config.place(key), shown(value)))


def _placed(found: KeyProblem, place: Any, value: str) -> KeyProblem:
    return KeyProblem(
        kind=found.kind, key=found.key, message=found.message, place=place, instead=found.instead, value=value
    )


def _judge(key: str, config: Config, defaults: Mapping[str, Any], *, is_added: bool) -> KeyProblem | None:
    """What to say of KEY, which DEFAULTS do not have; None: nothing."""
    if _is_free(key, defaults) or key in _sections(config.version, config.engine):
        return None
    moves = verl_data.moves()
    if (target := moved_to(key, defaults)) is not None:
        return KeyProblem(kind="moved", key=key, message=f"is {target} in verl {config.version}", instead=(target,))
    if (why := _mapped(moves.gone, key)) is not None:
        return KeyProblem(kind="moved", key=key, message=f"is not in verl {config.version}: {why}")
    if key in verl_data.extra():
        return None
    if (elsewhere := _elsewhere(key, config)) is not None:
        return elsewhere
    section, _, last = key.rpartition(".")
    near = nearest(key, defaults)
    if f"{section}._target_" in defaults:
        owner = str(defaults[f"{section}._target_"]).rpartition(".")[2]
        message = f"unknown key: {owner} of verl {config.version} has no such field"
        return KeyProblem(kind="unknown", key=key, message=message, instead=near)
    if last in verl_data.asked() and is_added:
        return None
    message = f"verl {config.version} has no such key and is not known to read it"
    return KeyProblem(kind="unread", key=key, message=message, instead=near)


def _is_free(key: str, defaults: Mapping[str, Any]) -> bool:
    """Below a mapping of the user's own, or below a key that is null."""
    if any(key.startswith(f"{name}.") or key == name for name in _FREE):
        return True
    parts = key.split(".")
    if any(word in parts for word in _FREE_WORDS):
        return True
    above = (".".join(parts[:length]) for length in range(1, len(parts)))
    return any(name in defaults and (defaults[name] in (None, {}) or "${" in str(defaults[name])) for name in above)


@lru_cache(maxsize=8)
def _sections(version: str, engine: str) -> frozenset[str]:
    keys = verl_data.defaults(version, engine)
    return frozenset(key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1))


def _elsewhere(key: str, config: Config) -> KeyProblem | None:
    """KEY belongs to another model engine, or to another version."""
    have = [name for name in verl_data.engines(config.version) if key in verl_data.defaults(config.version, name)]
    if have:
        chosen = "" if config.engine == "dp" else f", not model_engine={config.engine}"
        names = " or ".join(f"model_engine={name}" for name in have)
        return KeyProblem(
            kind="unknown", key=key, message=f"belongs to {names}{chosen}; choose that, or remove the key"
        )
    others = verl_data.every_key().get(key)
    if others is None:
        return None
    versions = ", ".join(others)
    return KeyProblem(kind="moved", key=key, message=f"is a key of verl {versions}, not of {config.version}")


@lru_cache(maxsize=256)
def _near(key: str, version: str, engine: str) -> tuple[str, ...]:
    known = [name for name in verl_data.defaults(version, engine) if "profiler" not in name and "_target_" not in name]
    last = key.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    if len(same) == 1:
        return tuple(same)
    section = key.rpartition(".")[0]
    beside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    here = difflib.get_close_matches(last, beside, n=1, cutoff=0.7)
    if here:
        return (f"{section}.{here[0]}",)
    pool = same or known
    return tuple(difflib.get_close_matches(key, pool, n=1, cutoff=0.75))


def nearest(key: str, defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of DEFAULTS that KEY probably was meant to be; none if there is no near one."""
    version, engine = _named(defaults)
    return _near(key, version, engine)


def _named(defaults: Mapping[str, Any]) -> tuple[str, str]:
    for version in verl_data.versions():
        for engine in verl_data.engines(version):
            if verl_data.defaults(version, engine) is defaults:
                return version, engine
    return verl_data.versions()[0], "dp"


def judge_values(config: Config, defaults: Mapping[str, Any]) -> None:
    """Deprecated keys that are given, and values of another type than the default's."""
    moves = verl_data.moves()
    for key in config.given:
        if key not in defaults:
            continue
        value, usual = config.values.get(key), defaults[key]
        target = _mapped(moves.deprecated, key)
        # Files that hold every key give deprecated ones at null.
        if target is not None and value not in (None, usual, 1):
            where = f"use {target}" if target else "verl ignores it"
            config.problem("deprecated", key, where, instead=(target,) if target else (), value=shown(value))
        expected = _expected(usual, value) or _too_small(key, value)
        if expected:
            config.problem("type", key, f"expected {expected}, got {shown(value)!r}", value=shown(value))


# Counts of which there is at least one; verl divides by them or loops over them.
_COUNTS = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
)


def _too_small(key: str, value: Any) -> str:
    """What a count must be, "" if VALUE is one."""
    if key not in _COUNTS or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return "" if value >= 1 and value == value // 1 else "a whole number of at least 1"


def _expected(usual: Any, value: Any) -> str:
    """What a value of a default like USUAL must be, "" if VALUE is one. Numbers are judged, texts are not."""
    if value is None or (isinstance(value, str) and ("$" in value or value == "???")):
        return ""
    if isinstance(usual, bool):
        return "" if isinstance(value, bool | int) else "true or false"
    if isinstance(usual, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return ""
