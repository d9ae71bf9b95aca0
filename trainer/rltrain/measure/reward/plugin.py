"""The measuring plug-in `reward`: what a user's reward function does, found out by calling it in processes of its own.

The function runs because the user named its file; nothing that data or configs name is run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcheck.facts.base import absent, known
from rlcheck.facts.reward import FormScore, Outcome, Repeats, RewardFacts, Shortcut, ThreadUse
from rltrain.measure.report import Report, Tell
from rltrain.measure.reward.calls import Call, Job, Mode, Said, Sample
from rltrain.measure.reward.rows import samples_of
from rltrain.measure.reward.texts import odd, pairs, shortcuts
from rltrain.measure.reward.trial import Trial, run_trial
from rltrain.rewards.request import one_line

NUM_THREADS = 8
REPEATS_IN_THREADS = 6
_SHOWN, _MOST = 60, 12
_SAME = 1e-9
"""Two scores that are no further apart, relative to their size, are the same: sums in float64 in another order."""


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """What a reward function does.

    Args:
        request: `path` of the file and `name` of the function in it ("": the one that is meant); `arguments`, more that
            it is called with; `data`, a file with rows; `prompt_key`; `form`, in which answers are to be found, "" for
            the usual ones; `limit_s`, longest time of one call.
        tell: called with `{"stage": …}` before each part, and with `{"partial": …}` after it.

    Returns:
        `rlcheck.facts.reward.RewardFacts` as plain data.

    Raises:
        UserError: a file, a function or data that cannot be used.
    """
    report = Report(tell, RewardFacts(path=request["path"], data=request["data"], limit_s=request["limit_s"]))
    with report.stage("data"):
        samples = samples_of(request["data"], request["prompt_key"])
        report.add(rows=tuple(Path(sample.place).name for sample in samples))
    _Examination(request, samples, report).all()
    return report.result()


class _Examination:
    """One function, as far as it has been looked at."""

    def __init__(self, request: Mapping[str, Any], samples: tuple[Sample, ...], report: Report[RewardFacts]) -> None:
        self._request, self._samples, self._report = request, samples, report
        self._limit_s = float(request["limit_s"])
        self._known: dict[tuple[str, str], Said] = {}
        self._ready: dict[str, Any] = {}

    def all(self) -> None:
        """Every part, one after the other."""
        with self._report.stage("answers"):
            self._right_and_wrong()
        best = self._report.facts.best
        form = best.form if best is not None else "{}"
        with self._report.stage("odd answers"):
            self._serial(list(odd(self._samples[0], form)))
        with self._report.stage("shortcuts"):
            self._shortcuts(form)
        ordinary = self._ordinary(form)
        with self._report.stage("again"):
            self._again(ordinary)
        with self._report.stage("threads"):
            self._threads(ordinary)
        with self._report.stage("pickling"):
            pickled = run_trial(self._job("pickle"), self._limit_s).pickle
            self._report.add(pickle=known(one_line(pickled or "", 300)))

    def _job(self, mode: Mode, calls: Sequence[Call] = (), num_threads: int = 1) -> Job:
        request = self._request
        return Job(request["path"], request["name"], request["arguments"], mode, tuple(calls), num_threads)

    def _serial(self, calls: list[Call]) -> Trial:
        """Make CALLS one after the other, and note what went wrong."""
        trial = run_trial(self._job("serial", calls), self._limit_s)
        if not self._ready:
            self._ready = trial.ready
            self._report.add(function=trial.ready["function"], style=trial.ready["style"])
        wrong: dict[str, list[Outcome]] = defaultdict(list)
        for number, said in trial.said.items():
            if said.kind not in ("score", "none"):
                wrong[said.kind].append(_outcome(calls[number], said.words))
        facts = self._report.facts
        slowest = max(trial.said, key=lambda number: trial.said[number].seconds, default=-1)
        if slowest >= 0 and trial.said[slowest].seconds > facts.slowest_s:
            self._report.add(slowest_s=round(trial.said[slowest].seconds, 4), slowest=calls[slowest].text)
        self._report.add(num_calls=facts.num_calls + len(trial.said), **{
            name: (*getattr(facts, name), *wrong[name])[:_MOST] for name in ("empty", "raised", "late") if wrong[name]
        })  # fmt: skip
        if len(trial.said) < len(calls):
            self._report.note(f"{len(calls) - len(trial.said)} calls were not made: too many before them took too long")
        return trial

    def _right_and_wrong(self) -> None:
        tried = list(pairs(self._samples, self._request["form"]))
        # Without answers that are known to be right, what else can be judged still is.
        calls = [call for _, right, wrong in tried for call in (right, wrong)] or [
            Call("an answer", "The answer is 1.", sample) for sample in self._samples
        ]
        trial = self._serial(calls)
        scores: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for at, (form, _, _) in enumerate(tried):
            right, wrong = trial.said.get(2 * at), trial.said.get(2 * at + 1)
            if right is not None and wrong is not None and right.kind == wrong.kind == "score":
                scores[form][0].append(right.score)
                scores[form][1].append(wrong.score)
        forms = tuple(
            FormScore(form=form, right=_mean(right), wrong=_mean(wrong), num_rows=len(right))
            for form, (right, wrong) in scores.items()
        )
        values = {said.score for said in trial.said.values() if said.kind == "score"}
        self._report.add(forms=forms, varies=len(values) > 1, reads_truth=self._reads_truth())
        self._known = {(c.solution, c.sample.place): trial.said[n] for n, c in enumerate(calls) if n in trial.said}
        if not tried:
            self._report.note("the ground truths are no texts or numbers that differ: right answers could not be made")

    def _reads_truth(self) -> Any:
        if self._ready["style"] == "trl":
            columns = {name for sample in self._samples for name in sample.columns} - {"prompt", "prompts"}
            named = sorted(columns & set(self._ready["names"]))
            return known(True) if named else absent("it names no column of the data")
        reads = self._ready["reads_truth"]
        return absent("its code does not show it") if reads is None else known(reads)

    def _shortcuts(self, form: str) -> None:
        best = self._report.facts.best
        if best is None or best.gain < 0:
            self._report.add(shortcuts=absent("no right answer earned more than a wrong one"))
            return
        tried = list(shortcuts(self._samples, form))
        trial = self._serial([call for _, call in tried])
        scores: dict[tuple[str, bool], list[float]] = defaultdict(list)
        for number, (hedges, call) in enumerate(tried):
            if number in trial.said and trial.said[number].kind == "score":
                scores[call.text, hedges].append(trial.said[number].score)
        full = best.right - _SAME * max(1.0, abs(best.right))
        self._report.add(shortcuts=known(tuple(
            Shortcut(text=text, hedges=hedges, num_rows=len(each), mean=_mean(each),
                     num_full=sum(score >= full for score in each))
            for (text, hedges), each in scores.items()
        )))  # fmt: skip

    def _ordinary(self, form: str) -> list[Call]:
        """Right and wrong answers of the best form that got a score."""
        calls = [call for one, right, wrong in pairs(self._samples, self._request["form"]) if one == form
                 for call in (right, wrong)]  # fmt: skip
        return [call for call in calls if self._alone(call) is not None]

    def _alone(self, call: Call) -> float | None:
        said = self._known.get((call.solution, call.sample.place))
        return said.score if said is not None and said.kind == "score" else None

    def _is_other(self, call: Call, score: float) -> bool:
        alone = self._alone(call)
        return alone is not None and abs(score - alone) > _SAME * max(1.0, abs(alone))

    def _again(self, ordinary: list[Call]) -> None:
        if not ordinary:
            self._report.add(repeats=absent("no answer got a score"))
            return
        calls = [*reversed(ordinary), *ordinary]
        trial = run_trial(self._job("serial", calls), self._limit_s, hash_seed="1")
        other = [_other(calls[n], said, self._alone(calls[n])) for n, said in sorted(trial.said.items())
                 if said.kind == "score" and self._is_other(calls[n], said.score)]  # fmt: skip
        found = Repeats(num_calls=len(trial.said), num_other=len(other), other=tuple(other[:_MOST]))
        self._report.add(repeats=known(found))

    def _threads(self, ordinary: list[Call]) -> None:
        repeats = self._report.facts.repeats.value
        if repeats is None or repeats.num_other:
            self._report.add(threads=absent("scores that are the same each time are needed for it"))
            return
        if self._ready["style"] == "trl":
            self._report.add(threads=absent("TRL calls it from one thread"))
            return
        calls = ordinary * REPEATS_IN_THREADS
        trial = run_trial(self._job("threads", calls, NUM_THREADS), self._limit_s)
        said = sorted(trial.said.items())
        other = [_other(calls[n], one, self._alone(calls[n])) for n, one in said
                 if one.kind == "score" and self._is_other(calls[n], one.score)]  # fmt: skip
        failed = [_outcome(calls[n], one.words) for n, one in said if one.kind != "score"]
        self._report.add(threads=known(ThreadUse(
            num_threads=NUM_THREADS, num_calls=len(said), num_other=len(other), num_failed=len(failed),
            other=tuple(other[:_MOST]), failed=tuple(failed[:_MOST]),
        )))  # fmt: skip


def _outcome(call: Call, words: str) -> Outcome:
    return Outcome(text=one_line(call.text, 2 * _SHOWN), row=Path(call.sample.place).name, said=one_line(words, 300))


def _other(call: Call, said: Said, alone: float | None) -> Outcome:
    return _outcome(call, f"{said.score:g}, alone {alone:g}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
