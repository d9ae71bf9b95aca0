"""`trainer_state.json` of Hugging Face trainers: every record that was logged, and how many steps there will be.

Source: transformers/trainer_callback.py, class TrainerState (`log_history`, `global_step`, `max_steps`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from rlcheck.measure.run.jsonl import Lines, Records, parsed
from rlcheck.measure.run.series import CurveError, Series


def read_state(path: Path, series: Series) -> int:
    """File the records of the trainer's state at PATH in SERIES.

    Returns:
        The steps that the training will have; 0: it does not say.

    Raises:
        CurveError: it cannot be read, or is something else.
    """
    try:
        state = parsed(path.read_bytes())
    except OSError as error:
        raise CurveError(f"{path} cannot be read: {error.strerror or error}") from None
    history = state.get("log_history") if state is not None else None
    if state is None or not isinstance(history, list):
        raise CurveError(f"{path} is no trainer_state.json: it has no log_history")
    records = Records(series)
    for record in cast("list[Any]", history):
        if isinstance(record, dict):
            records.add(cast("dict[str, Any]", record), series.places(1).start)
    records.finish(Lines())
    total = state.get("max_steps")
    return total if isinstance(total, int) and total > 0 else 0


def logged_name(tag: str) -> str:
    """The name in `log_history` of what the trainer's TensorBoard callback calls TAG.

    Source: rewrite_logs of transformers/integrations/integration_utils.py.
    """
    group, _, rest = tag.partition("/")
    return rest if group == "train" else f"{group}_{rest}" if group in ("eval", "test") and rest else tag
