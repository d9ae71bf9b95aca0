"""`ray_kwargs.timeline_json_file`: when each process worked on what, as a Chrome trace.

Open it in chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import exceptions as ray_errors

from rltrain.cluster.ray_api import ray
from rltrain.cluster.waits import Say
from rltrain.core.errors import UserError

FLUSH_S = 2.0
"""Workers send their events once a second."""


def writable(file: str | None) -> Path | None:
    """FILE as a path, tried out before the run; None where no timeline is wanted.

    Raises:
        UserError: it cannot be written.
    """
    if file is None:
        return None
    place = Path(file).expanduser().absolute()
    try:
        place.touch()
    except OSError as error:
        raise UserError(f"ray_kwargs.timeline_json_file={file} cannot be written: {error.strerror}") from None
    return place


def write(place: Path, say: Say) -> None:
    """Write what Ray knows so far. A timeline that cannot be written ends no run."""
    time.sleep(FLUSH_S)
    try:
        place.write_text(json.dumps(named(ray.timeline() or [])), encoding="utf-8")
    except (OSError, RuntimeError, ray_errors.RayError) as error:
        say(f"note: the timeline {place} could not be written: {error}")


def named(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ray's EVENTS, each call under the worker's name and its method, which Ray has put into the category alone."""
    prefix = "task::"
    return [
        {**event, "name": event["cat"].removeprefix(prefix) if event["cat"].startswith(prefix) else event["name"]}
        for event in events
    ]
