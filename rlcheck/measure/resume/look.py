"""The checkpoints in a folder: whose they are, and what their files say."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from rlcheck.errors import UserError
from rlcheck.facts.resume import Maker, ResumeFacts
from rlcheck.measure.config.mounts import hangs
from rlcheck.measure.resume import own, trainer, verl

_NAMES: dict[str, re.Pattern[str]] = {
    "global_step": re.compile(r"global_step_(\d{1,12})"),
    "checkpoint": re.compile(r"checkpoint-(\d{1,12})"),
}
_MOST = 256
_READERS: dict[Maker, Callable[[Path, dict[int, Path], int | None], ResumeFacts]] = {
    "rltrain": own.read,
    "verl": verl.read,
    "transformers": trainer.read,
}


def look(
    given: Path, *, ranks: int = 0, checksums: bool = False, on: Callable[[str], None] = lambda _: None
) -> ResumeFacts:
    """What is in GIVEN: a run's folder, its folder of checkpoints, or one of them.

    Args:
        given: as typed.
        ranks: on which it is to be resumed; 0: not known.
        checksums: read all of the checkpoint from which it would be resumed.
        on: told what is looked at.

    Raises:
        UserError: it is no folder, its file server does not answer, or no checkpoint of a known kind is in it.
    """
    path = Path(os.path.abspath(given.expanduser()))
    if hangs(path):
        raise UserError(f"{given}: its file server does not answer; try `ls {given}` before a run is started on it")
    if not path.is_dir():
        raise UserError(f"{given}: there is no such folder; give a run's folder, or that of its checkpoints")
    single = _step_of(path)
    place, steps = (path.parent, {single: path}) if single is not None else _steps(path)
    maker = _maker(place, steps)
    if maker is None:
        raise UserError(
            f"{given}: no checkpoints in it; expected global_step_N (rltrain, verl) or checkpoint-N (Trainer, TRL)"
        )
    on(f"{len(steps)} checkpoints in {place}")
    left = sorted(steps)[:-_MOST]
    kept = {step: path for step, path in steps.items() if step not in left}
    taken = _tracked(place) if maker == "verl" and single is None else None
    to_read = (taken if taken in kept else max(kept, default=None)) if checksums else None
    found = _READERS[maker](place, kept, to_read)
    if single is not None:
        found = _alone(found, single)
    notes = (f"{len(left)} checkpoints of earlier steps were not looked at",) if left else ()
    return replace(found, wanted_ranks=ranks, read_all=to_read is not None, notes=(*found.notes, *notes))


def _step_of(path: Path) -> int | None:
    match = next((match for name in _NAMES.values() if (match := name.fullmatch(path.name))), None)
    return int(match.group(1)) if match else None


def _steps(path: Path) -> tuple[Path, dict[int, Path]]:
    """The folder that holds checkpoints, PATH or `checkpoints` in it, and they by step."""
    for place in (path, path / "checkpoints"):
        for name in _NAMES.values():
            if steps := _matching(place, name):
                return place, steps
    for place in (path, path / "checkpoints"):
        if any(_matching(place, re.compile(r"\.global_step_(\d{1,12})\.(?:partial|old)"))):
            return place, {}
    return path, {}


def _matching(place: Path, name: re.Pattern[str]) -> dict[int, Path]:
    try:
        entries = [(match, entry) for entry in os.scandir(place) if (match := name.fullmatch(entry.name))]
        return {int(match.group(1)): Path(entry.path) for match, entry in entries if entry.is_dir()}
    except OSError:
        return {}


def _maker(place: Path, steps: dict[int, Path]) -> Maker | None:
    """Whose layout it is, by the files that it alone has."""
    if any(path.name.startswith("checkpoint-") for path in steps.values()):
        return "transformers"
    half = any(place.glob(".global_step_*"))
    if half or any((path / name).exists() for path in steps.values() for name in (own.MANIFEST, own.FACTS)):
        return "rltrain"
    if steps or (place / verl.TRACKER).exists():
        return "verl"
    return None


def _tracked(place: Path) -> int | None:
    try:
        return int(verl.tracked(place) or "")
    except ValueError:
        return None


def _alone(found: ResumeFacts, step: int) -> ResumeFacts:
    """FOUND, of the one checkpoint that was named: it is what a run is to go on from."""
    one = next(saved for saved in found.checkpoints if saved.step == step)
    error = "" if one.whole else one.unfinished or f"{one.damages[0].file} {one.damages[0].why}"
    return replace(found, checkpoints=(one,), chosen=step, chosen_error=error, chosen_why="it was named", tracker=None,
                   reached=max(found.reached, step))  # fmt: skip
