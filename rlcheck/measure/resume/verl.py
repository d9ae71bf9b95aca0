"""verl's checkpoints: a file for each rank, and a tracker that names the step from which a run goes on.

Source: verl/utils/checkpoint and verl/trainer/ppo/ray_trainer.py, `_save_checkpoint` and `_load_checkpoint`, of verl
0.7.1 to 0.9.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from rlcheck.facts.resume import Damage, Lack, Part, ResumeFacts, Saved
from rlcheck.measure.resume.files import NotWhole, read_object, size_of
from rlcheck.measure.resume.folder import Folder, distributed, looked_at, missing_ranks, read_folder, shards

TRACKER, CONFIG = "latest_checkpointed_iteration.txt", "fsdp_config.json"
_RANK = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
_DATA = re.compile(r"data(_\d+)?\.pt")
_MOST_TRACKER = 4096


@dataclass
class _Role:
    """What was found of one role. `ranks`: of each kind and number of ranks."""

    below: str
    ranks: dict[tuple[str, int], set[int]] = field(default_factory=dict[tuple[str, int], set[int]])
    damages: list[Damage] = field(default_factory=list[Damage])
    lacks: list[Lack] = field(default_factory=list[Lack])
    world_sizes: tuple[int, ...] = ()
    needs_ranks: bool = True


def read(place: Path, steps: dict[int, Path], read_step: int | None) -> ResumeFacts:
    """The checkpoints STEPS in PLACE; all of that of READ_STEP is read."""
    found = [saved(step, path, read_all=step == read_step) for step, path in sorted(steps.items())]
    tracker, chosen, error, why = _automatic(place, steps)
    taken = next((one for one in found if one.step == chosen), None)
    if taken is not None and not taken.whole:
        error = taken.unfinished or f"{taken.damages[0].file} {taken.damages[0].why}"
    return ResumeFacts(
        maker="verl",
        place=str(place),
        checkpoints=tuple(found),
        tracker=tracker,
        chosen=chosen,
        chosen_error=error,
        chosen_why=why,
        reached=max(steps, default=0),
    )


def tracked(place: Path) -> str | None:
    """What the tracker says, in a line; None: there is none."""
    try:
        if size_of(place / TRACKER) > _MOST_TRACKER:
            return "(more than a number)"
        return (place / TRACKER).read_bytes().decode("utf-8", "replace")
    except (NotWhole, OSError):
        return None


def _automatic(place: Path, steps: dict[int, Path]) -> tuple[str | None, int | None, str, str]:
    """What the tracker says, the step that verl takes, what it raises, and why."""
    said = tracked(place)
    if said is None:
        return None, None, "", f"there is no {TRACKER}: verl starts from step 0"
    shown = " ".join(said.split())[:60]
    try:
        step = int(said)
    except ValueError:
        words = f"{TRACKER} holds {shown!r}, and no step"
        return shown, None, f"ValueError: {words}", words
    if step not in steps:
        return shown, None, "", f"{TRACKER} says {shown}, and there is no global_step_{step}: verl starts from step 0"
    return shown, step, "", f"{TRACKER} says {shown}"


def saved(step: int, path: Path, *, read_all: bool) -> Saved:
    """The checkpoint of STEP at PATH."""
    folder = read_folder(path)
    about = Saved(step=step, name=path.name, files=len(folder.sizes), bytes=folder.bytes)
    below = [name for name in ("actor", "critic") if folder.has_below(name)]
    is_sft = not below and any(_RANK.fullmatch(name) for name in folder.names())
    if not is_sft and "actor" not in below:
        return replace(about, unfinished="it has no actor: max_actor_ckpt_to_keep deletes it and leaves the rest")
    roles = [_role(folder, name, read_all=read_all) for name in ([""] if is_sft else below)]
    if empty := next((role for role in roles if not role.world_sizes and not role.damages and role.needs_ranks), None):
        return replace(about, unfinished=f"no rank has written the weights of {empty.below or path.name}")
    damages = [damage for role in roles for damage in role.damages]
    lacks = [lack for role in roles for lack in role.lacks]
    data = [name for name in folder.names() if _DATA.fullmatch(name)]
    damages += looked_at(folder, sorted(data)[:64], read_all=read_all)
    if not data:
        lacks.append(Lack(part="data order", file="data.pt"))
    sizes = roles[0].world_sizes
    return replace(about, damages=tuple(damages[:16]), lacks=tuple(lacks), world_sizes=sizes,
                 needs_ranks=roles[0].needs_ranks)  # fmt: skip


def _role(folder: Folder, below: str, *, read_all: bool) -> _Role:
    role = _Role(below)
    start = f"{below}/" if below else ""
    for name in folder.names(below):
        if match := _RANK.fullmatch(name):
            role.ranks.setdefault((match[1], int(match[2])), set()).add(int(match[3]))
    if role.ranks:
        _sharded(role, folder, start, read_all=read_all)
    else:
        _megatron(role, folder, start)
    if folder.has_below(f"{start}huggingface"):
        role.damages += shards(folder, f"{start}huggingface", read_all=read_all)[1]
    return role


def _sharded(role: _Role, folder: Folder, start: str, *, read_all: bool) -> None:
    """Files of FSDP: each rank reads its own, of its own number of ranks."""
    worlds = sorted({world for _, world in role.ranks})
    said = _world_size(folder, start, role.damages)
    main = said if said in worlds else max(worlds, key=lambda one: (len(role.ranks.get(("model", one), ())), one))
    for kind in ("model", "optim", "extra_state"):
        ranks = role.ranks.get((kind, main), set())
        if ranks:
            pattern = f"{start}{kind}_world_size_{main}_rank_{{}}.pt"
            role.damages += missing_ranks(pattern, ranks, main)
            role.damages += looked_at(folder, [pattern.format(rank) for rank in sorted(ranks)], read_all=read_all)
    role.lacks += _lacks(role, start, main)
    role.world_sizes = tuple(world for world in worlds if len(role.ranks.get(("model", world), ())) >= world)


def _lacks(role: _Role, start: str, main: int) -> Iterator[Lack]:
    parts: dict[str, tuple[Part, ...]] = {"model": ("weights",), "optim": ("optimizer",),
                                          "extra_state": ("schedule", "random numbers")}  # fmt: skip
    for kind, names in parts.items():
        if not role.ranks.get((kind, main)):
            for part in names:
                yield Lack(part=part, file=f"{start}{kind}_world_size_{main}_rank_0.pt", raises=True)


def _world_size(folder: Folder, start: str, damages: list[Damage]) -> int:
    """Of `fsdp_config.json`, which is for people and verl's merger; 0 where it does not say one."""
    name = start + CONFIG
    if name not in folder.sizes:
        return 0
    try:
        found = read_object(folder.path / name).get("world_size")
    except NotWhole as error:
        damages.append(Damage(file=name, kind=error.kind, why=error.why))
        return 0
    return found if isinstance(found, int) else 0


def _megatron(role: _Role, folder: Folder, start: str) -> None:
    """Megatron's distributed checkpoints, which load on other parallel sizes, too."""
    parts: dict[Part, str] = {"weights": "model", "optimizer": "optimizer", "random numbers": "extra"}
    there = [name for name in parts.values() if folder.has_below(f"{start}{name}")]
    if folder.has_below(f"{start}dist_ckpt"):
        role.damages += distributed(folder, f"{start}dist_ckpt")
    elif "model" in there:
        for part, name in parts.items():
            at = f"{start}{name}/dist_ckpt"
            if folder.has_below(at):
                role.damages += distributed(folder, at)
            elif name not in there:
                role.lacks.append(Lack(part=part, file=f"{start}{name}", raises=True))
        role.damages += shards(folder, f"{start}model/huggingface")[1]
    else:
        return
    role.needs_ranks = False
