"""Checkpoints: written beside, made whole by one rename, proven by checksums, kept or dropped by rule."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.core.errors import RunFailure, UserError
from rltrain.records.run_dir import on_disk

MANIFEST = "complete.json"
CONTROLLER = "controller.json"
LEFT_BEHIND = "left_behind"
"""Below the checkpoints: those of later steps than a run went on from."""
_NAME = re.compile(r"global_step_(\d+)")
FULL_BYTES = 1 << 16
"""A disk with less room than this is full: a write takes what fits before it fails."""
_CHUNK_BYTES = 1 << 22

Write = Callable[[Path], Mapping[str, str] | None]
"""Fills a directory; SHA-256 of the files whose writers took it, by path from there."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint that was finished."""

    path: Path
    step: int

    def controller_state(self) -> dict[str, Any]:
        """What the controller program needs to go on."""
        return json.loads((self.path / CONTROLLER).read_text(encoding="utf-8"))

    def verify(self, read: bool = True) -> None:
        """Hold every file against what was noted when the checkpoint was made: size and, if it is to be READ, checksum.

        Raises:
            UserError: a file is missing, shorter, or other than it was.
        """
        try:
            manifest: Any = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            wanted = {str(name): digest for name, digest in manifest["sha256"].items()}
            sizes = {str(name): int(size) for name, size in manifest.get("bytes", {}).items()}  # not of older ones
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            words = f"checkpoint {self.path} is damaged: {MANIFEST} cannot be read ({type(error).__name__})"
            raise UserError(f"{words}; {self._way_out()}") from None
        for name in wanted:
            if not (self.path / name).is_file():
                raise UserError(f"checkpoint {self.path} is damaged: {name} is missing; {self._way_out()}")
            if name in sizes and (self.path / name).stat().st_size != sizes[name]:
                raise UserError(f"checkpoint {self.path} is damaged: {name} has changed; {self._way_out()}")
        if not read:
            return
        for name, digest in _digests(self.path, list(wanted)).items():
            if digest != wanted[name]:
                raise UserError(f"checkpoint {self.path} is damaged: {name} has changed; {self._way_out()}")

    def _way_out(self) -> str:
        earlier = [c for c in finished(self.path.parent) if c.step < self.step]
        if earlier:
            return f"go on from an earlier one with trainer.resume_mode={earlier[-1].path}"
        return "there is no earlier one: start over with trainer.resume_mode=disable"


def finished(directory: Path) -> list[Checkpoint]:
    """The finished checkpoints in DIRECTORY, oldest step first. One that a crash left half-made is not among them."""
    if not directory.is_dir():
        return []
    found = [
        Checkpoint(place, int(match.group(1)))
        for place in directory.iterdir()
        if (match := _NAME.fullmatch(place.name)) and (place / MANIFEST).is_file()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def at(path: Path) -> Checkpoint:
    """The checkpoint at PATH.

    Raises:
        UserError: there is none, or it was never finished.
    """
    match = _NAME.fullmatch(path.name)
    if not path.is_dir():
        raise UserError(f"there is no checkpoint {path}")
    if match is None:
        raise UserError(f"{path} is no checkpoint: name a directory called global_step_N")
    if not (path / MANIFEST).is_file():
        raise UserError(f"checkpoint {path} was never finished (it has no {MANIFEST}); choose another")
    return Checkpoint(path, int(match.group(1)))


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int | None) -> None:
        """Hold DIRECTORY; keep the last KEEP checkpoints and the best one (None: all)."""
        self._directory = directory
        self._keep = keep

    def save(self, step: int, state: dict[str, Any], write: Write) -> Checkpoint:
        """Make the checkpoint of STEP: WRITE fills a directory, and only when all is on the disk it gets its name.

        Files whose checksums WRITE returns are not read again.

        Raises:
            RunFailure: it cannot be written (disk full); earlier checkpoints are untouched.
        """
        final = self._directory / f"global_step_{step}"
        partial = self._directory / f".global_step_{step}.partial"
        for old in self._directory.glob(".global_step_*.old"):
            _restore(old)
        for left in self._directory.glob(".global_step_*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            _finish(partial, step, state, write(partial) or {})
            _put_in_place(partial, final)
        except (OSError, UserError) as error:  # the latter: from the workers
            reason = _reason(error, self._directory)
            raise RunFailure(
                f"checkpoint of step {step} could not be written to {self._directory}: {reason}; "
                "earlier checkpoints are whole. Free space, then run again with trainer.resume_mode=auto"
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return Checkpoint(final, step)

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename the checkpoints of steps after STEP, from which a run goes on that went further before.

        They would count as the newest ones otherwise: to resume from, and to keep.

        Returns:
            Where they lie now; `rltrain eval` and `rltrain export` take them there.

        Raises:
            RunFailure: one cannot be renamed.
        """
        moved: list[Path] = []
        for checkpoint in finished(self._directory):
            if checkpoint.step > step:
                place = self._directory / LEFT_BEHIND / checkpoint.path.name
                with on_disk(f"checkpoint {checkpoint.path} cannot be moved to {place}"):
                    place.parent.mkdir(exist_ok=True)
                    shutil.rmtree(place, ignore_errors=True)
                    moved.append(checkpoint.path.rename(place))
        return moved

    def confirmed(self, best: dict[str, float] | None) -> dict[str, float] | None:
        """BEST, as the checkpoint knows it from which a run goes on, if the best one itself is here."""
        if best is None:
            return None
        kept = [checkpoint for checkpoint in finished(self._directory) if checkpoint.step == best["step"]]
        try:
            # A checkpoint of the same step may be another run's.
            return best if kept and kept[0].controller_state()["best"] == best else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def drop_old(self, best_step: int | None) -> None:
        """Remove all but the last ones and the best."""
        if self._keep is None:
            return
        for checkpoint in finished(self._directory)[: -self._keep]:
            if checkpoint.step != best_step:
                # The manifest goes first: what is half removed must not look finished.
                (checkpoint.path / MANIFEST).unlink()
                shutil.rmtree(checkpoint.path, ignore_errors=True)


def choose(directory: Path, resume_mode: str, resume_from_path: str | None, verify: bool = True) -> Checkpoint | None:
    """The checkpoint to go on from by `trainer.resume_mode`: `auto` (the last one), `disable`, or a path.

    VERIFY: read all of it, and hold it against its checksums; else against its files' sizes.

    Raises:
        UserError: the path is no finished checkpoint, or the chosen one is damaged.
    """
    if resume_mode == "disable":
        return None
    if resume_mode == "auto":
        chosen = last(directory)
    else:
        place = Path(resume_from_path or resume_mode).expanduser().absolute()
        _restore(_old(place))
        chosen = at(place)
    if chosen is not None:
        chosen.verify(verify)
    return chosen


def last(directory: Path) -> Checkpoint | None:
    """The newest finished checkpoint in DIRECTORY."""
    for old in directory.glob(".global_step_*.old"):
        _restore(old)
    found = finished(directory)
    return found[-1] if found else None


def _finish(directory: Path, step: int, state: dict[str, Any], known: Mapping[str, str]) -> None:
    """Add the controller's STATE and the checksums to what the workers wrote, and have all of it on the disk.

    Raises:
        UserError: a file that a rank wrote, whose checksum is KNOWN, is not there for this process.
    """
    (directory / CONTROLLER).write_text(json.dumps(state), encoding="utf-8")
    names = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    if unseen := sorted(known.keys() - set(names)):
        raise UserError(f"{unseen[0]}, which a training rank wrote, is not there: all nodes must share this directory")
    digests = {**_digests(directory, [name for name in names if name not in known]), **known}
    sizes = {name: (directory / name).stat().st_size for name in names}
    manifest = {"step": step, "sha256": {name: digests[name] for name in names}, "bytes": sizes}
    (directory / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    _sync_to_disk(directory, [*names, MANIFEST])


def _put_in_place(partial: Path, final: Path) -> None:
    """Give PARTIAL its name. One that is there already (of a run that went back) makes way by a rename too."""
    old = _old(final)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    _sync_directory(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(final: Path) -> Path:
    """Where the checkpoint that is at FINAL waits while a new one takes its name."""
    return final.with_name(f".{final.name}.old")


def _restore(old: Path) -> None:
    """Give OLD its name back, if a kill came before the new checkpoint had taken it."""
    final = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
    if (old / MANIFEST).is_file() and not final.exists():
        with suppress(OSError):  # of a run that is only read; then the checkpoint is missing, as it was
            old.rename(final)


def _reason(error: OSError | UserError, place: Path) -> str:
    """Why PLACE took no more. Torch's writers hide a full disk behind an error of their own, about positions."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    is_full = place.is_dir() and shutil.disk_usage(place).free < FULL_BYTES
    return os.strerror(errno.ENOSPC) if is_full else str(error)


def _digests(directory: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(_digest, [directory / name for name in names]), strict=True))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_to_disk(directory: Path, names: list[str]) -> None:
    for name in names:
        with (directory / name).open("rb") as file:
            os.fsync(file.fileno())
    for place in {directory, *(p for p in directory.rglob("*") if p.is_dir())}:
        _sync_directory(place)


def _sync_directory(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
