"""When things happen: checkpoints, evaluation, and whether there is data for a single step."""

from __future__ import annotations

from collections.abc import Iterator

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of, given
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_verl, stops, who


def frequency_cases(run: ConfigFacts) -> Iterator[Case]:
    """Frequencies beyond the end of the run, and those that were switched off by hand."""
    total = run.spec.total_steps
    for field, steps, what in (
        ("save_freq", run.spec.save_freq, "checkpoint"),
        ("test_freq", run.spec.test_freq, "evaluation"),
    ):
        if total is not None and steps > total > 0:
            words = f"at most the {total} steps of the run"
            yield Case("warn", field, words, f"{steps}: no {what} before the last step", max(1, total // 10))
        elif steps <= 0 and field == "save_freq" and given(run, field):
            yield Case("info", field, "a number of steps", f"{steps}: nothing is saved, not even at the end")
        elif steps == 0 and given(run, field):
            yield Case("info", field, "a number of steps, or -1", f"0: no {what} at all")


@check("CFG026", "Saving and evaluation happen during the run", needs=("config",), playbook="save-test-frequency",
       problem="Saving or evaluation never happens during the run")  # fmt: skip
def frequencies(facts: Facts) -> Verdict:
    """Compares save_freq and test_freq with the number of steps.

    What it does:
        Reports frequencies beyond the last step, where the number of steps is given, and a save_freq that is switched
        off by the config itself. The frameworks' own default, off, is not reported.

    Why it matters:
        A run that is interrupted before its last step has then saved nothing, and a reward that is being gamed goes
        unnoticed until the end.
    """
    return conclude(
        run := config_of(facts), list(frequency_cases(run)), "saving and evaluation happen as often as they can"
    )


def rows_cases(run: ConfigFacts) -> Iterator[Case]:
    """Fewer rows than one step takes."""
    data = run.spec.data
    if 0 < data.train_max_samples < data.train_batch_size:
        words = f"at most train_max_samples={data.train_max_samples} prompts"
        why = f" ({who(run)} drops the last, smaller batch: none is left)" if is_verl(run) else ""
        yield Case(
            stops(run, "CFG028"),
            "data.train_batch_size",
            words + why,
            str(data.train_batch_size),
            data.train_max_samples,
        )


@check("CFG028", "The data has enough rows for a step", needs=("config",), playbook="batch-arithmetic",
       problem="The data has too few rows for a step")  # fmt: skip
def rows(facts: Facts) -> Verdict:
    """Compares the prompts of a step with the rows that the config lets in.

    What it does:
        Reports a train_batch_size above data.train_max_samples. Files are counted by `rlcheck data`.

    Why it matters:
        The last, smaller batch of an epoch is dropped, so that an epoch has no step: "Train dataloader is empty!".
    """
    return conclude(
        run := config_of(facts), list(rows_cases(run)), "nothing says that there are fewer rows than a step takes"
    )
