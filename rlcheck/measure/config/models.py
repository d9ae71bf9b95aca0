"""What a model's directory, or its snapshot in the hub's cache, says of it: sizes, layers, weights, tokenizer."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.config import ModelFacts, ModelUse, RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.document import parse, scalar_of
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.model_table import checked, sizes_by_name
from rlcheck.measure.config.mounts import DEADLINE_S, file_size, hangs
from rlcheck.measure.config.tokenizers import tokenizer_in
from rlcheck.measure.config.trees import recordable

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Bytes of the largest header of a safetensors file, as its own library allows.
_MAX_HEADER = 100_000_000
_MAX_JSON = 64 << 20
# Tokens of rltrain's toy tokenizer (rltrain.toy.tokenizer), where toy.vocab_size does not pad it.
TOY_TOKENS = 21
TOY_SIGNS = {"add": 3}
"""What a task's own signs add to them."""

IN_CHECKPOINT = "huggingface"
"""Where a checkpoint of rltrain holds its model; rltrain takes the checkpoint for it."""


def is_hub_name(path: str) -> bool:
    """Whether PATH reads as `owner/name` of the hub, and is no directory here."""
    return _HUB_ID.fullmatch(path) is not None and not path.startswith((".", "/", "~")) and not os.path.isdir(path)


def models_of(config: Config, spec: RunSpec, *, look: bool, shape: str) -> dict[str, Fact[ModelFacts]]:
    """The models of each role that SPEC has.

    Args:
        config: for the sizes of rltrain's toy model.
        look: whether the disk may be looked at; if not, only SHAPE and the toy's sizes say anything.
        shape: file with sizes, `hidden_size=896,…`, or the name of a model that rlcheck knows, for the actor's model
            and those that are the same.

    Raises:
        ReadError: SHAPE is neither.
    """
    given = _shape(shape) if shape else None
    toy = _toy(config) if config.framework == "rltrain" else {}
    roles = {"actor": spec.actor, "ref": spec.ref, "critic": spec.critic, "reward_model": spec.reward_model}
    read: dict[str, Fact[ModelFacts]] = {}
    found: dict[str, Fact[ModelFacts]] = {}
    for name, role in roles.items():
        if role is None:
            continue
        use = role.model
        same = name in ("actor", "ref") or use.path in (None, spec.actor.model.path) or _is_default(config, name)
        if given is not None and same:
            found[name] = known(_with(given, use))
        elif use.path is None:
            found[name] = _made(toy, use)
        else:
            mark = msgspec.json.encode(use).decode()
            found[name] = read[mark] = read.get(mark) or _read(use, look, config.framework)
            model = found[name].value
            if model is not None and model.lacking is not None:
                config.fallbacks.append(f"the sizes of {model.path} are those of {model.source}")
    return found


def _is_default(config: Config, role: str) -> bool:
    """verl's critic defaults to a model of verl's own authors unless it is given: no other model is meant by it."""
    return role == "critic" and config.framework == "verl" and "critic.model.path" not in config.given


def with_lengths(config: Config, spec: RunSpec, found: Mapping[str, Fact[ModelFacts]]) -> RunSpec:
    """SPEC with the engine's length, which verl leaves to the model where the config does not say."""
    rollout = spec.rollout
    if config.framework != "verl" or rollout.max_model_len is not None:
        return spec
    actor = found.get("actor", Fact()).value
    positions = actor.sizes.get("max_position_embeddings") if actor is not None else None
    positions = None if isinstance(positions, bool) else positions
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    if isinstance(positions, int) and positions > 0:
        config.fallbacks.append(f"actor_rollout_ref.rollout.max_model_len=null: {positions}, the model's own length")
    else:
        config.fallbacks.append(f"actor_rollout_ref.rollout.max_model_len=null: {longest}, prompt and response")
        positions = longest
    return msgspec.structs.replace(spec, rollout=msgspec.structs.replace(rollout, max_model_len=positions))


@dataclass(frozen=True)
class _Shape:
    sizes: dict[str, Any]
    source: str


def _shape(text: str) -> _Shape:
    path = Path(text).expanduser()
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        try:
            sizes = parse(str(path), path.read_text(encoding="utf-8")).tree
        except (OSError, UnicodeDecodeError) as error:
            raise ReadError(f"--model-shape: {path} cannot be read: {error}") from None
        return _Shape(sizes, str(path))
    if (sizes := sizes_by_name(text)) is not None:
        return _Shape(sizes, f"rlcheck's table of models, {checked()}")
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise ReadError(
            f"--model-shape: no file {path.absolute()}; give a config.json, a model such as Qwen/Qwen2.5-7B, or sizes "
            "such as hidden_size=896,num_hidden_layers=24,num_attention_heads=14,vocab_size=151936"
        )
    return _Shape({name.strip(): scalar_of(value.strip()) for name, _, value in pairs}, "--model-shape")


def _with(shape: _Shape, use: ModelUse) -> ModelFacts:
    return ModelFacts(path=use.path or "", source=shape.source, sizes=_overridden(shape.sizes, use.override))


def _toy(config: Config) -> dict[str, Any]:
    """Sizes of the model that rltrain makes for its toy task; none where the config asks for no such model."""
    sizes = config.pick.mapping("toy.model")
    tokens = TOY_TOKENS + TOY_SIGNS.get(config.pick.text("toy.task") or "", 0)
    return {"vocab_size": config.pick.whole("toy.vocab_size") or tokens, **sizes} if sizes else {}


def _made(toy: dict[str, Any], use: ModelUse) -> Fact[ModelFacts]:
    if not toy:
        return absent("the config names no model")
    return known(ModelFacts(source="toy.model", sizes=_overridden(toy, use.override), modules=_guessed_modules()))


def _guessed_modules() -> Fact[tuple[str, ...]]:
    return absent("a model that is made has no weight files")


def _overridden(sizes: dict[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    return {**sizes, **override}


def _read(use: ModelUse, look: bool, framework: str) -> Fact[ModelFacts]:
    """The model as its files say; without them, its sizes as `rlcheck/data/models.json` has them."""
    found = _on_disk(use, look, framework)
    sizes = sizes_by_name(use.path or "") if found.value is None else None
    if sizes is None:
        return found
    source = f"rlcheck's table of models, {checked()}"
    sizes = _overridden(sizes, use.override)
    unread: Fact[Any] = Fact(missing=found.missing)
    return known(
        ModelFacts(
            path=use.path or "",
            source=source,
            sizes=sizes,
            modules=unread,
            weight_bytes=unread,
            tokenizer=unread,
            lacking=found.missing,
        )
    )


def _on_disk(use: ModelUse, look: bool, framework: str) -> Fact[ModelFacts]:
    assert use.path is not None
    if not look:
        return missing(MissingKind.NOT_COLLECTED, "the disk was not looked at; give --model-shape")
    if any(hangs(place) for place in (Path(_plain(use.path)), _cache())):
        return missing(MissingKind.TIMEOUT, f"the file system of {use.path} did not answer within {DEADLINE_S:.0f} s")
    directory = _place(use.path, framework)
    if directory is None:
        what = "is not in the Hugging Face cache of this machine" if is_hub_name(use.path) else "is no directory here"
        return absent(f"{use.path} {what}; give --model-shape")
    sizes = _json(directory / "config.json")
    if sizes is None:
        return absent(f"{directory} holds no config.json that can be read")
    generation = _json(directory / "generation_config.json") or {}
    remote = sizes.get("auto_map")
    own = None if use.tokenizer_path is None else _place(use.tokenizer_path, framework)
    template = use.custom_chat_template or ""
    modules, weight_bytes = _weights(directory)
    return known(
        ModelFacts(
            path=str(directory),
            source=str(directory / "config.json"),
            sizes=_overridden(sizes, use.override),
            generation_eos=_ids(generation.get("eos_token_id")),
            auto_map=cast("dict[str, Any]", remote) if isinstance(remote, dict) else {},
            modules=modules,
            weight_bytes=weight_bytes,
            tokenizer=tokenizer_in(own or directory, template),
        )
    )


def _place(path: str, framework: str) -> Path | None:
    """`model_directory`; of a checkpoint of rltrain, the model in it."""
    directory = model_directory(path)
    if directory is not None and framework == "rltrain" and (directory / IN_CHECKPOINT / "config.json").is_file():
        return directory / IN_CHECKPOINT
    return directory


def model_directory(path: str) -> Path | None:
    """The directory of a model: PATH itself or, for a hub name, its snapshot in the local cache; None: neither."""
    plain = _plain(path)
    if os.path.isdir(plain):
        return Path(plain)
    if _HUB_ID.fullmatch(path) is None:
        return None
    repository = _cache() / f"models--{path.replace('/', '--')}"
    snapshots = repository / "snapshots"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="ascii").strip()
        if (snapshots / commit).is_dir():
            return snapshots / commit
        found = [entry for entry in snapshots.iterdir() if entry.is_dir()]
    except (OSError, ValueError):
        return None
    return max(found, key=lambda entry: entry.stat().st_mtime, default=None)


def _plain(path: str) -> str:
    return os.path.abspath(os.path.expandvars(os.path.expanduser(path)))


def _cache() -> Path:
    """Where the hub's client keeps models, by its own environment variables."""
    env = os.environ
    if cache := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    home = env.get("HF_HOME")
    base = Path(home) if home else Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return base.expanduser() / "hub"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        if file_size(path) > _MAX_JSON:
            return None
        found: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return cast("dict[str, Any]", recordable(found)) if isinstance(found, dict) else None


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(one for one in cast("list[Any]", value) if type(one) is int)
    return (value,) if type(value) is int else ()


def _weights(directory: Path) -> tuple[Fact[tuple[str, ...]], Fact[int]]:
    """Names of linear layers and the bytes of the weights, from an index or from the files' headers."""
    index = _json(directory / "model.safetensors.index.json")
    if index is not None:
        placed: Any = index.get("weight_map")
        names = list(cast("dict[str, Any]", placed)) if isinstance(placed, dict) else []
        meta: Any = index.get("metadata")
        total = cast("dict[str, Any]", meta).get("total_size") if isinstance(meta, dict) else None
        size: Fact[int] = (
            known(int(total)) if isinstance(total, int | float) else absent("the index holds no total size")
        )
        return known(_linear(dict.fromkeys(names))), size
    path = directory / "model.safetensors"
    header = _header(path)
    if header is None:
        return absent(f"{directory} holds no safetensors files"), absent(f"{directory} holds no safetensors files")
    shapes = {
        name: cast("dict[str, Any]", part).get("shape") for name, part in header.items() if isinstance(part, dict)
    }
    return known(_linear(shapes)), known(path.stat().st_size)


def _header(path: Path) -> dict[str, Any] | None:
    try:
        file_size(path)
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                return None
            found: Any = msgspec.json.decode(file.read(length))
    except (OSError, struct.error, msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {name: part for name, part in cast("dict[str, Any]", found).items() if name != "__metadata__"}


def _linear(shapes: Mapping[str, Any]) -> tuple[str, ...]:
    """Last parts of the names of linear layers inside blocks; embeddings, norms and the head are none."""
    found: set[str] = set()
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        last = module.rpartition(".")[2]
        one_dimensional = isinstance(shape, list) and len(cast("list[Any]", shape)) != 2
        if (
            kind != "weight"
            or one_dimensional
            or "norm" in last
            or "embed" in last
            or last in ("lm_head", "wte", "wpe")
        ):
            continue
        if last.isdecimal() or last in ("score", "ln_f", "ln_1", "ln_2"):
            continue
        found.add(last)
    return tuple(sorted(found))
