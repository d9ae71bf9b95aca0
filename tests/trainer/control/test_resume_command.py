"""The command that a stopped run says to go on with."""

from __future__ import annotations

from trainer.run import RunOptions, resume_command


def test_the_command_to_go_on_has_all_that_the_run_was_given() -> None:
    given = ("data.seed=3", "trainer.resume_mode=resume_path", "+trainer.resume_from_path=x")
    options = RunOptions("my run.yaml", given, ignore=("ENV007", "GPU001"), skip_checks=True)
    assert resume_command(options) == (
        "rltrain run 'my run.yaml' --skip-checks --ignore ENV007 --ignore GPU001 data.seed=3 trainer.resume_mode=auto"
    )
