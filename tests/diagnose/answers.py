"""A made-up answer with everything in it, and ways to show and to spoil it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec

from rlcheck.diagnose.model import Answer, Confirmation, Diagnosis, Quote, Raised, Setting, Site, Unknown
from rlcheck.finding import Fix
from rlcheck.playbook import Source, Verify
from rlcheck.report.diagnosis.render import render_diagnosis
from rlcheck.report.diagnosis.report import DiagnosisReport, make_report

FORMATS = ("text", "json", "markdown", "junit", "sarif", "prometheus", "nagios")
OOM_LINE = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. " + "Tried to allocate 13.91 GiB. " * 9 + "The end."
OOM = Diagnosis(
    id="gpu-out-of-memory",
    title="The GPU has no memory left for a tensor",
    status="fail",
    cause="13.9 GiB were asked for in one piece, and 8.0 GiB of 79.1 GiB were free.",
    confidence="medium",
    verify=(Verify(run="nvidia-smi\nrlcheck env --select GPU", expect="another process on the card"),),
    fixes=(
        Fix(
            "Lower the micro batch", "config", "safe", command="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
        ),
        Fix("End the other process", "shell", "unsafe", True, "kill 4711", "that process"),
        Fix("Use a larger card", "advice", "safe"),
    ),
    sources=(Source("https://docs.pytorch.org/docs/stable/notes/cuda.html", "how memory is kept"),),
    evidence=(
        Quote("logs/train.log", 412, (OOM_LINE,), rank="3", node="gpu-07", pid="4712"),
        Quote("logs/train.log", 500, ("again", "and again")),
    ),
    consequences=("A Ray actor died",),
    seen="12 times, ranks 3, 4",
    confirmations=(
        Confirmation("GPU014", "confirmed", "expected 70 GiB free, found 8 GiB", "gpu-07"),
        Confirmation("GPU015", "open", "could not look: nvidia-smi did not answer"),
    ),
)
LOWER = Diagnosis("fragmentation", "The allocator's pieces do not fit", "fail",
                  "Much is reserved, little is used.", "low", evidence=OOM.evidence[:1], grounds="general")  # fmt: skip
ECHO = Diagnosis("actor-died", "A Ray actor died", "fail", "It only says so.", "low",
                 evidence=(Quote("-", 600, ("ActorDiedError",)),), echo=True)  # fmt: skip
WARNING = Diagnosis("slow-data", "The data loader is slow", "warn", "It has one worker.", "high", incident=2,
                    evidence=(Quote("logs/data.log", 7, ("slow",)),))  # fmt: skip
ANSWER = Answer(diagnoses=(OOM, LOWER, WARNING, ECHO), remarks=("A flag is deprecated",),
                notes=("b.log.gz: ends early",), files=2, lines=1204, bytes=90112)  # fmt: skip
STRANGE = Answer(
    unknown=Unknown((Quote("train.log", 3, ('  File "x.py", line 3, in main', "KeyError: 'reward'"), rank="0"),),
                    ("the logs of all ranks", "py-spy dump --pid PID"),
                    Raised("x.py", 3, "main", "KeyError", "'reward'")),
    files=1, lines=5, bytes=99,
)  # fmt: skip
EXPLAINED = Answer(
    diagnoses=(
        Diagnosis("source-acme-go", "acme: go raises ValueError", "fail", "go raises ValueError where `n > 3`.", "low",
                  evidence=OOM.evidence[1:], basis="source",
                  site=Site("acme", "1.2.4", "acme/go.py", 7, "go", False, ("n > 3",),
                            (Setting("n", "argument", "4", "log", "go", "Their number."),))),
    ),
    files=1, lines=5, bytes=99,
)  # fmt: skip
HEALTHY = Answer(files=3, lines=1, bytes=5 << 30)
ONLY_WARNED = Answer(diagnoses=(WARNING,), files=1, lines=9, bytes=2048)
ANSWERS = {"everything": ANSWER, "unknown": STRANGE, "healthy": HEALTHY, "explained": EXPLAINED, "warned": ONLY_WARNED}


def shown(report: DiagnosisReport, format: str, **options: Any) -> str:
    """What a renderer writes into a file."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    render_diagnosis(report, format, out, **options)
    out.seek(0)
    return out.read()


_FIXED = {"status", "kind", "safety", "confidence", "verdict", "basis", "grounds", "origin", "next"}


def spoiled(answer: Answer, spoil: Callable[[str], str]) -> Answer:
    """The answer with every free string in it changed."""

    def walk(tree: Any, key: str = "") -> Any:
        if isinstance(tree, str):
            return tree if key in _FIXED else spoil(tree)
        if isinstance(tree, dict):
            return {name: walk(value, name) for name, value in tree.items()}
        return [walk(item, key) for item in tree] if isinstance(tree, list | tuple) else tree

    return msgspec.convert(walk(msgspec.to_builtins(answer)), Answer)


def everything(answer: Answer, **options: Any) -> DiagnosisReport:
    """Its report with all that ranks lower."""
    return make_report(answer, everything=True, **options)
