"""The command that a stopped run says to go on with."""

from __future__ import annotations

from rltrain.cli.requests import RunRequest
from rltrain.cli.run import resume_command


def test_the_command_to_go_on_has_all_that_the_run_was_given() -> None:
    given = ("data.seed=3", "trainer.resume_mode=resume_path", "+trainer.resume_from_path=x")
    asked = RunRequest("my run.yaml", given, ignore=("ENV007", "GPU001"), skip_checks=True)
    assert resume_command(asked) == (
        "rltrain run 'my run.yaml' --skip-checks --ignore ENV007 --ignore GPU001 data.seed=3 trainer.resume_mode=auto"
    )
