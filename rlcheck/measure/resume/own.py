"""rltrain's checkpoints: each has a manifest, written last, with size and SHA-256 of every file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rlcheck.facts.resume import Damage, Lack, ResumeFacts, Saved
from rlcheck.measure.resume.files import NotWhole, digest_of, mapping, read_object, size_of
from rlcheck.measure.resume.folder import Folder, looked_at, read_folder

MANIFEST, FACTS = "complete.json", "actor/train_state.json"
_NAME = re.compile(r"\.?global_step_(\d{1,12})(?:\.partial|\.old)?")
_TAIL_BYTES = 1 << 20
_SHOWN = 16


def read(place: Path, steps: dict[int, Path], read_step: int | None) -> ResumeFacts:
    """The checkpoints STEPS in PLACE; all of that of READ_STEP is read."""
    found = [saved(step, path, read_all=step == read_step) for step, path in sorted(_restored(place, steps).items())]
    half = [path for path in place.glob(".global_step_*.partial") if path.is_dir()]
    found += [Saved(step=_step(path), name=path.name, unfinished="the save was interrupted") for path in sorted(half)]
    found.sort(key=lambda one: (one.step, one.whole))
    finished = [one for one in found if not one.unfinished]
    newest = finished[-1] if finished else None
    error = ""
    if newest is not None and newest.damages:
        error = f"checkpoint {newest.name} is damaged: {newest.damages[0].file} {newest.damages[0].why}"
    return ResumeFacts(
        maker="rltrain",
        place=str(place),
        checkpoints=tuple(found),
        chosen=None if newest is None else newest.step,
        chosen_error=error,
        chosen_why="rltrain takes the highest step that has complete.json",
        reached=max([_last_step(place.parent / "metrics.jsonl"), *(one.step for one in found)]),
        total_steps=_total(place.parent / "run.json"),
    )


def _restored(place: Path, steps: dict[int, Path]) -> dict[int, Path]:
    """STEPS, with those that waited while a new one took their name: rltrain gives it back to them."""
    old = {_step(path): path for path in place.glob(".global_step_*.old") if (path / MANIFEST).is_file()}
    return {**old, **steps}


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else 0


def saved(step: int, path: Path, *, read_all: bool) -> Saved:
    """The checkpoint of STEP at PATH."""
    folder = read_folder(path)
    about = Saved(step=step, name=path.name, files=len(folder.sizes), bytes=folder.bytes)
    if MANIFEST not in folder.sizes:
        return replace(about, unfinished=f"it has no {MANIFEST}, which is written last")
    try:
        manifest = read_object(path / MANIFEST)
        damages = _against(folder, manifest, read_all=read_all)
    except NotWhole as error:
        damages = (Damage(file=MANIFEST, kind=error.kind, why=error.why),)
    world_size, lacks = _trained(folder)
    return replace(about, damages=damages, lacks=lacks, world_sizes=(world_size,) if world_size else ())


def _against(folder: Folder, manifest: dict[str, Any], *, read_all: bool) -> tuple[Damage, ...]:
    """What differs from the MANIFEST."""
    digests, sizes = mapping(manifest.get("sha256")), mapping(manifest.get("bytes"))
    if not digests:
        raise NotWhole("changed", "lists no files")
    damages: list[Damage] = []
    for name, digest in digests.items():
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise NotWhole("changed", "names a file outside of the checkpoint")
        try:
            size = size_of(folder.path / name)
            if name in sizes and sizes[name] != size:
                kind = (
                    "empty" if not size else "cut" if isinstance(sizes[name], int) and size < sizes[name] else "changed"
                )
                raise NotWhole(kind, f"has {size} bytes, and had {sizes[name]} when the checkpoint was made")
            if read_all and digest_of(folder.path / name) != digest:
                raise NotWhole("changed", "has changed: its SHA-256 is another")
        except NotWhole as error:
            damages.append(Damage(file=name, kind=error.kind, why=error.why))
        if len(damages) >= _SHOWN:
            break
    unsized = [name for name in digests if name not in sizes]
    return tuple(damages) or looked_at(folder, unsized)


def _trained(folder: Folder) -> tuple[int, tuple[Lack, ...]]:
    """Ranks that trained, and what the checkpoint does not hold of the training."""
    try:
        document = read_object(folder.path / FACTS)
    except NotWhole:
        return 0, ()
    world_size, roles = document.get("world_size"), mapping(document.get("roles"))
    lacks: list[Lack] = []
    for role, told in roles.items():
        state = mapping(told)
        if state.get("num_steps") and not state.get("optimizer"):
            lacks.append(Lack(part="optimizer", file=f"actor/{role[:40]}"))
    return (world_size if isinstance(world_size, int) and 0 < world_size < 1 << 20 else 0), tuple(lacks)


def _last_step(path: Path) -> int:
    """The last step that the metrics of the run name; 0: none."""
    try:
        size = size_of(path)
        with path.open("rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except (OSError, NotWhole):
        return 0
    for line in reversed(lines):
        try:
            step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        return step if isinstance(step, int) and not isinstance(step, bool) else 0
    return 0


def _total(path: Path) -> int:
    """The steps of the run's plan, where its record says them; else 0."""
    try:
        trainer = read_object(path)["config"]["trainer"]
        total = trainer["total_training_steps"]
    except (NotWhole, KeyError, TypeError):
        return 0
    return total if isinstance(total, int) and total > 0 else 0
