"""Checkpoints of transformers' Trainer, and of what is built on it, such as TRL's trainers.

Source: transformers 5.19, trainer.py (`_save_checkpoint`, `_load_from_checkpoint`, `_load_optimizer_and_scheduler`,
`_load_rng_state`) and trainer_utils.py (`get_last_checkpoint`).
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from rlcheck.facts.resume import Damage, Lack, ResumeFacts, Saved
from rlcheck.measure.resume.files import NotWhole, read_object, size_of
from rlcheck.measure.resume.folder import Folder, distributed, looked_at, missing_ranks, read_folder, shards

STATE, SENTINEL = "trainer_state.json", "checkpoint-is-incomplete.txt"
_MOST_TAG = 256
_RNG = re.compile(r"rng_state(?:_(\d{1,6}))?\.pth")
_ZERO = re.compile(r"((?:bf16_)?zero_pp_rank_)(\d{1,6})(_mp_rank_\d+_optim_states\.pt)")


def read(place: Path, steps: dict[int, Path], read_step: int | None) -> ResumeFacts:
    """The checkpoints STEPS in PLACE; all of that of READ_STEP is read."""
    found = [saved(step, path, read_all=step == read_step) for step, path in sorted(steps.items())]
    newest = found[-1] if found else None
    error = ""
    if newest is not None and not newest.whole:
        damage = newest.damages[0] if newest.damages else None
        error = newest.unfinished if damage is None else f"{damage.file} {damage.why}"
    return ResumeFacts(
        maker="transformers",
        place=str(place),
        checkpoints=tuple(found),
        chosen=None if newest is None else newest.step,
        chosen_error=error,
        chosen_why="resume_from_checkpoint=True takes the highest number, whole or not",
        reached=max(steps, default=0),
        total_steps=max((_total(path) for path in [steps[one.step] for one in found if one.whole][-1:]), default=0),
    )


def saved(step: int, path: Path, *, read_all: bool) -> Saved:
    """The checkpoint of STEP at PATH."""
    folder = read_folder(path)
    about = Saved(step=step, name=path.name, files=len(folder.sizes), bytes=folder.bytes)
    if SENTINEL in folder.sizes:
        return replace(about, unfinished=f"it has {SENTINEL}: the save was interrupted")
    if STATE not in folder.sizes:
        return replace(about, unfinished=f"it has no {STATE}, which is written last")
    damages = [*looked_at(folder, [STATE])]
    tag = _deepspeed(folder, damages)
    there, broken = shards(folder, read_all=read_all)
    damages += broken
    sharded = [name for name in _folders(folder) if name.startswith(("pytorch_model_fsdp", "optimizer_"))]
    for name in sharded:
        damages += distributed(folder, name)
    adapters = [name for name in _folders(folder) if shards(folder, name)[0]]
    weights = there or bool(tag) or any(name.startswith("pytorch_model_fsdp") for name in sharded) or bool(adapters)
    if not weights and "pytorch_model_fsdp.bin" not in folder.sizes:
        damages.append(
            Damage(file="model.safetensors", kind="missing", why="is missing, and no other weights are there")
        )
    world_size = _ranks(folder)
    damages += looked_at(folder, sorted(name for name in folder.names() if name in _STATES or _RNG.fullmatch(name)),
                         read_all=read_all)  # fmt: skip
    return replace(about, damages=tuple(damages[:16]), lacks=tuple(_lacks(folder, bool(tag), sharded)),
                 world_sizes=(world_size,) if world_size else (), needs_ranks=bool(tag))  # fmt: skip


_STATES = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt")


def _folders(folder: Folder) -> list[str]:
    return sorted({name.partition("/")[0] for name in folder.sizes if "/" in name})


def _ranks(folder: Folder) -> int:
    """How many ranks have left their random numbers."""
    return sum(1 for name in folder.names() if _RNG.fullmatch(name))


def _lacks(folder: Folder, deepspeed: bool, sharded: list[str]) -> list[Lack]:
    here = folder.names()
    optimizer = any(name in here for name in _STATES[:2]) or any(one.startswith("optimizer") for one in sharded)
    schedule = "scheduler.pt" in here
    lacks: list[Lack] = []
    if not deepspeed and not (optimizer and schedule):
        # The Trainer loads both or none.
        missing = "optimizer.pt" if not optimizer else "scheduler.pt"
        lacks += [Lack(part="optimizer", file=missing), Lack(part="schedule", file=missing)]
    if not _ranks(folder):
        lacks.append(Lack(part="random numbers", file="rng_state.pth"))
    return lacks


def _deepspeed(folder: Folder, damages: list[Damage]) -> str:
    """The folder of DeepSpeed's part, "" where there is none; adds what is wrong with it to DAMAGES."""
    if "latest" not in folder.sizes:
        return ""
    try:
        path = folder.path / "latest"
        tag = path.read_text("utf-8", "replace").strip() if size_of(path) < _MOST_TAG else ""
    except (OSError, NotWhole):
        tag = ""
    if not tag or "/" in tag or not folder.has_below(tag):
        damages.append(Damage(file="latest", kind="changed", why=f"names {tag[:60]!r}, which is not there"))
        return "latest"
    names = folder.names(tag)
    matches = [match for name in names if (match := _ZERO.fullmatch(name))]
    if matches:
        ranks = {int(match[2]) for match in matches}
        pattern = f"{tag}/{matches[0][1]}{{}}{matches[0][3]}"
        damages += missing_ranks(pattern, ranks, max(max(ranks) + 1, _ranks(folder)))
    damages += looked_at(folder, [f"{tag}/{name}" for name in sorted(names) if name.endswith(".pt")])
    return tag


def _total(path: Path) -> int:
    try:
        total = read_object(path / STATE).get("max_steps")
    except NotWhole:
        return 0
    return total if isinstance(total, int) and total > 0 else 0
