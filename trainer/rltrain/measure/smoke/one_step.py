"""`python -m rltrain.measure.smoke.one_step CONFIG [KEY=VALUE]...`: `rltrain run --skip-checks` without a checkpoint.

A run always saves its last step. Of a large model that is minutes and hundreds of gigabytes, for nothing here.
"""

from __future__ import annotations

import sys

from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.core.errors import RunFailure, UserError


class SaveNothing(SaveCheckpoints):
    """Keeps the place of `SaveCheckpoints` in a run."""

    def save(self, step: int) -> None:
        """Note the step, and write nothing."""
        self.saved_step = step


def main() -> int:
    """Run, and return the exit code."""
    from rltrain.cli.requests import RunRequest
    from rltrain.cli.run import FAILED, MISUSE, run
    from rltrain.controller import session

    session.SaveCheckpoints = SaveNothing
    source, *overrides = sys.argv[1:]
    try:
        return run(RunRequest(source, tuple(overrides), skip_checks=True))
    except (UserError, RunFailure) as error:
        print(f"rltrain: {error}", file=sys.stderr)  # noqa: T201
        return MISUSE if isinstance(error, UserError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
