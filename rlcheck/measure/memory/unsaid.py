"""What a prediction needs and a config does not say: taken from what the user says beside it, or asked for."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import Missing, MissingKind
from rlcheck.facts.config import ConfigFacts, RoleSpec, RunSpec
from rlcheck.measure.memory.predict import Gpu, predict
from rlcheck.measure.memory.whatif import with_settings

_ENGINES_OWN = {
    "rollout.max_seqs": "the engine's own choice",
    "rollout.max_batched_tokens": "the engine's own choice",
    "rollout.enforce_eager": "the engine's own choice",
    "rollout.max_model_len": "prompt and response",
    "rollout.kv_cache_dtype": "the engine's own choice",
    "rollout.quantization": "the engine's own choice",
    "rollout.dtype": "16 bits",
    "rollout.sync_bucket_bytes": "the trainer's own choice",
    "actor.model.target_modules": "all linear layers",
    "actor.optim.name": "AdamW",
}
"""Fields that move little: counted as they are by default, and said."""
_SHARED = (
    "sharding.", "micro_batch_size", "dynamic_batch", "max_tokens", "infer_", "chunk", "model.gradient_checkpointing",
    "model.fused_kernels", "model.remove_padding", "model.liger", "torch_compile",
)  # fmt: skip
_LENGTH = "data.max_prompt_length"
_RESPONSE = "data.max_response_length"
_LEAST_TOKENS = 2


class _Noting:
    """A struct of the spec, read through, which notes each field without a value that is read."""

    def __init__(self, struct: msgspec.Struct, path: str, without: Mapping[str, Missing], read: set[str]) -> None:
        self._struct, self._path, self._without, self._read = struct, path, without, read

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}{name}"
        if path in self._without:
            self._read.add(path)
        value: Any = getattr(self._struct, name)
        if isinstance(value, msgspec.Struct):
            return _Noting(value, f"{path}.", self._without, self._read)
        return value


def needed(run: ConfigFacts, gpu: Gpu) -> tuple[str, ...]:
    """Fields of RUN without a value that its prediction reads.

    Raises:
        UnknownModelError: the actor's sizes are not known.
    """
    read: set[str] = set()
    open_fields = {path: why for path, why in run.without.items() if why.kind is not MissingKind.ABSENT}
    spec = cast(RunSpec, _Noting(run.spec, "", open_fields, read))
    predict(msgspec.structs.replace(run, spec=spec), gpu, 0)
    return tuple(sorted(read))


def bounded(run: ConfigFacts) -> ConfigFacts:
    """RUN with the longest prompt that its engine takes, where the config limits whole sequences alone."""
    most, response = run.spec.rollout.max_model_len, run.spec.data.max_response_length
    is_said = "rollout.max_model_len" not in run.without and most is not None and most >= _LEAST_TOKENS
    if _LENGTH not in run.without or most is None or not is_said:
        return run
    if _RESPONSE not in run.without and response < most:
        values = {_LENGTH: most - response}
        note = f"prompts are counted with {most - response} tokens, what responses leave of the engine's {most}"
    else:  # however the two divide it, all of it is what is trained on
        values = {_LENGTH: 1, _RESPONSE: most - 1}
        note = f"prompt and response are counted with {most} tokens together, the most that a sample may have"
    without = {path: why for path, why in run.without.items() if path not in values}
    return msgspec.structs.replace(with_settings(run, values), without=without, fallbacks=(*run.fallbacks, note))


def assumed(run: ConfigFacts, said: Sequence[str]) -> ConfigFacts:
    """RUN with the values of fields that the user SAID, each `FIELD=VALUE`.

    Raises:
        UserError: no such field, or no value of it.
    """
    values: dict[str, Any] = {}
    for word in said:
        path, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--assume {word}: expected FIELD=VALUE, such as data.max_prompt_length=512")
        values[path] = _typed(run, path, text)
    if not values:
        return run
    without = {path: why for path, why in run.without.items() if path not in values}
    notes = tuple(f"{path} is assumed to be {value}" for path, value in values.items())
    return msgspec.structs.replace(with_settings(run, values), without=without, fallbacks=(*run.fallbacks, *notes))


def _typed(run: ConfigFacts, path: str, text: str) -> Any:
    kind: Any = RunSpec
    struct: Any = run.spec
    for part in path.split("."):
        fields = {one.name: one.type for one in msgspec.structs.fields(kind)} if isinstance(kind, type) else {}
        if part not in fields or struct is None:
            known = "the fields of rlcheck's model of a run, which `rlcheck config CONFIG --format json` names"
            raise UserError(f"--assume {path}: the run has no such field; it takes {known}")
        struct, kind = getattr(struct, part), _struct(fields[part])
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"--assume {path}={text}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _struct(kind: Any) -> Any:
    """The struct of an optional one; any other type as it is."""
    if not isinstance(kind, types.UnionType):
        return kind
    kinds = [one for one in typing.get_args(kind) if one is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (RoleSpec,) else kind


def settled(run: ConfigFacts, gpu: Gpu) -> ConfigFacts:
    """RUN as a prediction can be made of it, with a note for what is counted by default.

    Raises:
        UserError: the prediction needs what the config does not say.
        UnknownModelError: the actor's sizes are not known.
    """
    if not run.without:
        return run
    run = _as_actor(bounded(run))
    open_fields = needed(run, gpu)
    lacking = [path for path in open_fields if path not in _ENGINES_OWN]
    placed = {path.partition(".")[0] for path in lacking if path.endswith(".sharding.strategy")}
    # What else of the placement counts depends on the strategy.
    lacking = [
        path
        for path in lacking
        if path.partition(".")[0] not in placed
        or not path.partition(".")[2].startswith("sharding.")
        or path.endswith(".strategy")
    ]
    if lacking:
        given = " ".join(f"--assume {path}=VALUE" for path in lacking)
        raise UserError(f"{run.source}: memory depends on what the config does not say; give {given}")
    notes = tuple(f"{path}: not in the config, counted as {_default(run, path)}" for path in open_fields)
    return msgspec.structs.replace(run, fallbacks=(*run.fallbacks, *notes))


def _as_actor(run: ConfigFacts) -> ConfigFacts:
    """RUN with a reference, and a critic, that are placed and read as the actor is where nothing else is said."""
    values: dict[str, Any] = {}
    for path in run.without:
        role, _, rest = path.partition(".")
        there = role in ("ref", "critic", "reward_model") and getattr(run.spec, role) is not None
        if there and rest.startswith(_SHARED) and f"actor.{rest}" not in run.without:
            value: Any = run.spec.actor
            for part in rest.split("."):
                value = getattr(value, part)
            values[path] = value
    if not values:
        return run
    roles = " and ".join(dict.fromkeys(path.partition(".")[0] for path in values))
    note = f"what the config does not say of {roles} is counted as the actor's"
    without = {path: why for path, why in run.without.items() if path not in values}
    return msgspec.structs.replace(with_settings(run, values), without=without, fallbacks=(*run.fallbacks, note))


def _default(run: ConfigFacts, path: str) -> str:
    struct: Any = run.spec
    for part in path.split("."):
        struct = getattr(struct, part)
    return f"{struct} ({_ENGINES_OWN[path]})"
