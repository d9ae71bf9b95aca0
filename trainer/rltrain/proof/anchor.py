"""What weights are held against: the model's own files where they can be read, else what the capsule says of them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlcheck.facts.capsule import Origin
from rlcheck.facts.step import Link
from rltrain.proof import compare, order
from rltrain.proof.compare import Unknown, differs, same
from rltrain.proof.read import DTYPES, BadCapsule, Case, read, regular

MOST_BYTES = 64 << 30
"""Of a model's files; of larger ones nothing is read."""
MOMENTS = {"actor": "actor.before", "critic": "critic.before", "reference": "reference"}
_MOMENTS = ("exp_avg.", "exp_avg_sq.")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def start_weights(case: Case) -> Link:
    """The actor and the critic as the first step of a run finds them, or as the step before left them."""
    name, first = "start-weights", case.head.start_step + 1
    if case.head.step != first:
        return _carried(case, name)
    roles = [role for role in ("actor", "critic") if MOMENTS[role] in case.weights]
    if not roles:
        raise Unknown("; ".join(case.head.missing) or "the capsule has no weights before the step")
    parts: list[tuple[str, Callable[[], Link]]] = [
        (f"the {role}", lambda role=role: held_against(case, name, role)) for role in roles
    ]
    if case.head.start_step:
        parts.append(("the moments", lambda: _resumed(case, name)))
    return compare.each(name, parts)


def _carried(case: Case, name: str) -> Link:
    """Weights and moments beside those that the step before left, where its capsule is beside this one."""
    step, before = case.head.step - 1, of_same_run(case, case.head.step - 1)
    compared, bad = (0, []) if before is None else _changed(case, before, ("", *_MOMENTS))
    if not compared:
        return compare.absent(name, f"the weights are those that step {step} left, whose capsule is not beside this")
    return _left(name, step, compared, bad)


def _resumed(case: Case, name: str) -> Link:
    """Moments beside those that the step of the checkpoint left, if the capsule beside this one is of that very step.

    Raises:
        Unknown: there is none, or it left other weights: the run that it is of went on otherwise.
    """
    step = case.head.start_step
    before = _beside(case, step)
    if before is None:
        raise Unknown(f"no capsule of step {step} is beside this: those of the checkpoint were not read")
    compared, bad = _changed(case, before, ("",))
    if bad or not compared:
        raise Unknown(f"the capsule of step {step} is not of the checkpoint: those of the checkpoint were not read")
    return _left(name, step, *_changed(case, before, _MOMENTS))


def _changed(case: Case, before: Case, kinds: Sequence[str]) -> tuple[int, list[str]]:
    """How many states of KINDS were compared, and which of CASE begins otherwise than BEFORE ends."""
    compared, bad = 0, list[str]()
    for role in ("actor", "critic"):
        if f"{role}.before" not in case.weights or f"{role}.after" not in before.weights:
            continue
        for kind in kinds:
            here, left = (one.weights.get(f"{role}.{kind}{when}", {}) for one, when in
                          ((case, "before"), (before, "after")))  # fmt: skip
            names = sorted(here.keys() | left.keys())
            compared += len(names)
            bad += [f"{role}.{kind}{key}" for key in names if not _alike(here.get(key), left.get(key))]
    return compared, bad


def _left(name: str, step: int, compared: int, bad: Sequence[str]) -> Link:
    if bad:
        said = f"{len(bad)} of {compared} weights and moments are not those that step {step} left"
        return differs(name, said, compared, bad)
    return same(name, compared, f"those that step {step} left")


def of_same_run(case: Case, step: int) -> Case | None:
    """The capsule of STEP of the same run, beside that of CASE; None where there is none that can be read."""
    other = _beside(case, step)
    if other is None or not case.head.begun:
        return None
    mine, its = ((one.begun, one.config) for one in (case.head, other.head))
    return other if mine == its else None


def _beside(case: Case, step: int) -> Case | None:
    """The capsule of STEP in the directory of CASE, of the same seed, which keeps the same numbers of tensors."""
    try:
        other = read(case.path.parent / f"step_{step}")
    except BadCapsule:
        return None
    mine, its = ((one.seed, one.tensors, at) for one, at in ((case.head, step), (other.head, other.head.step)))
    return other if mine == its else None


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def reference(case: Case, name: str) -> Link:
    """The reference: of the model's files, or in the first step of all the actor that the run began with."""
    held = case.weights.get("reference")
    if held is None:
        raise Unknown("the capsule has no weights 'reference'")
    if case.config("sft_warmup.steps") or not (_origin(case, "reference").tensors or _place(case, "reference")):
        actor = case.weights.get("actor.before")
        if case.head.policy_version == 0 and actor is not None:
            return _judged(name, "reference", held, actor, "the actor that the run began with")
    return held_against(case, name, "reference")


def held_against(case: Case, name: str, role: str) -> Link:
    """The weights of ROLE beside those of its origin, tensor by tensor.

    Raises:
        Unknown: nothing says what they should be.
    """
    held, origin = case.weights[MOMENTS[role]], _origin(case, role)
    files, link = _place(case, role), None
    if files is not None:
        found = _tensors(files, {key: tensor.numel() for key, tensor in held.items()})
        link = _judged(name, role, held, found, f"its model's files in {files}") if found else None
    if link is not None and (link.status == "same" or _unchanged(files, origin)):
        return link
    if not origin.tensors:
        why = origin.missing or (f"the files in {files} are not those of the run" if link else "its model's files")
        raise Unknown(why if origin.missing or link else f"{why} cannot be read, and the capsule says nothing of them")
    dtype = DTYPES.get(origin.dtype, torch.float32)
    sums = {key: order.checksum(tensor.to(dtype) if tensor.is_floating_point() else tensor)
            for key, tensor in held.items() if _named(key, origin.tensors)}  # fmt: skip
    bad = [key for key, value in sums.items() if origin.tensors[_named(key, origin.tensors) or ""] != value]
    if not sums:
        raise Unknown(f"the {origin.source} of the {role} has no tensors of these names")
    words = {"files": "its model's files", "checkpoint": "the checkpoint that the run resumed from",
             "warm-up": "the actor after the warm-up"}.get(origin.source, origin.source)  # fmt: skip
    if bad:
        return differs(name, f"the {role} does not hold the weights of {words} in {len(bad)} of {len(sums)} tensors",
                       len(sums), bad, _causes(case, role))  # fmt: skip
    return same(name, len(sums), _counted(role, len(sums), len(held), words))


def whole_weights(case: Case, role: str) -> dict[str, Tensor] | None:
    """The weights of ROLE from its model's files, where these hold the numbers that the capsule keeps; else None."""
    files, held = _place(case, role), case.weights.get(MOMENTS[role], {})
    if files is None or not held or (role != "reference" and case.head.step != case.head.start_step + 1):
        return None
    found = _tensors(files, dict.fromkeys(held))
    if set(found) != set(held) or _judged("", role, held, found, "").status != "same":
        return None
    return {name: tensor.to(held[name].dtype) for name, tensor in found.items()}


def kept_differ(held: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors whose first numbers in WHOLE are not those that are HELD."""
    return [name for name, tensor in held.items() if name in whole and not _equal(tensor, whole[name])]


def _origin(case: Case, role: str) -> Origin:
    return next((one for one in case.head.origins if one.role == role), Origin(role))


def _place(case: Case, role: str) -> Path | None:
    """The directory of the files that ROLE began with, where they can be read here."""
    origin = _origin(case, role)
    if origin.source not in ("", "files") or (case.config("sft_warmup.steps") and role != "critic"):
        return None
    if not origin.source and case.head.start_step and role != "reference":
        return None
    key = "critic.model.path" if role == "critic" else "actor_rollout_ref.model.path"
    place = Path(origin.path or str(case.config(key) or "."))
    return place if place.is_absolute() and _files(place) else None


def _files(place: Path) -> list[Path]:
    """The safetensors of a model in PLACE, each a regular file; none where one is not."""
    try:
        if (place / _INDEX).is_file() and (place / _INDEX).stat().st_size <= 64 << 20:
            names = json.loads((place / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
            files = [place / Path(str(name)).name for name in sorted(set(names))]
        else:
            files = [place / _SINGLE] if (place / _SINGLE).exists() else sorted(place.glob("*.safetensors"))
        sizes = [file.stat().st_size for file in files if regular(file)]
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return files if len(sizes) == len(files) and sum(sizes) <= MOST_BYTES else []


def _tensors(place: Path, wanted: Mapping[str, int | None]) -> dict[str, Tensor]:
    """Tensors of WANTED names from the files in PLACE, so many of their first numbers, None: whole.

    None at all where one cannot be read.
    """
    found: dict[str, Tensor] = {}
    try:
        for file in _files(place):
            with safe_open(file, "pt") as opened:
                here = dict.fromkeys(opened.keys())
                for name, count in wanted.items():
                    if (key := _named(name, here)) is not None:
                        found[name] = _first(opened, key, count)
    except (OSError, ValueError, KeyError, SafetensorError):
        return {}
    return found


def _first(opened: safe_open, key: str, count: int | None) -> Tensor:
    part = opened.get_slice(key)
    shape = torch.Size(part.get_shape())
    if count is None or shape.numel() <= count:
        return opened.get_tensor(key)
    return part[: -(-count // max(shape[1:].numel(), 1))].flatten()[:count]


def _named(name: str, held: Mapping[str, object]) -> str | None:
    """NAME as HELD has it: a critic's backbone, and base models, leave the first part of a name out."""
    plain = name.removeprefix("backbone.")
    for key in (name, plain, f"model.{plain}", f"transformer.{plain}", plain.partition(".")[2]):
        if key and key in held:
            return key
    return None


def _judged(name: str, role: str, held: Mapping[str, Tensor], wanted: Mapping[str, Tensor], words: str) -> Link:
    compared = [key for key in held if key in wanted]
    if not compared:
        raise Unknown(f"{words}: no tensors of the {role}'s names")
    bad = [key for key in compared if not _equal(held[key], wanted[key])]
    numbers = sum(held[key].numel() for key in compared)
    if not bad:
        return same(name, numbers, _counted(role, len(compared), len(held), words))
    places = [f"{key}: differs by {_share(held[key], wanted[key])} of its length" for key in bad]
    said = f"the {role} does not hold the weights of {words} in {len(bad)} of {len(compared)} tensors"
    return differs(name, said, numbers, places)


def _equal(held: Tensor, wanted: Tensor) -> bool:
    """Whether HELD is WANTED, or its first numbers, in the format of HELD."""
    flat = wanted.flatten()[: held.numel()].to(held.dtype)
    shaped = held.shape == wanted.shape or held.ndim == 1
    return shaped and flat.numel() == held.numel() and torch.equal(held.flatten(), flat)


def _share(held: Tensor, wanted: Tensor) -> str:
    flat = wanted.flatten()[: held.numel()].double()
    if flat.numel() != held.numel():
        return "all"
    return f"{float((held.flatten().double() - flat).norm() / flat.norm().clamp(min=1e-30)):.3g}"


def _counted(role: str, compared: int, count: int, words: str) -> str:
    return "" if compared == count else f"{compared} of the {role}'s {count} tensors are in {words}"


def _causes(case: Case, role: str) -> list[str]:
    actor, held = case.weights.get("actor.before", {}), case.weights[MOMENTS[role]]
    as_actor = role == "reference" and actor and all(
        name in actor and torch.equal(tensor, actor[name]) for name, tensor in held.items()
    )  # fmt: skip
    return ["it holds the actor's weights of this step"] if as_actor else []


def _unchanged(place: Path | None, origin: Origin) -> bool:
    """Whether the files in PLACE are those of the run; where the capsule does not say, they are."""
    if place is None or not origin.files:
        return True
    return all((place / name).is_file() and _sha256(place / name) == digest for name, digest in origin.files.items())


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(file):
        digest.update(block)
    return digest.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(1 << 24):
            yield block
