"""Predicted and measured memory of the H200 cases, beside what other estimators say: `compare_memory.py`.

Needs torch and transformers; accelerate and deepspeed are asked where they can be imported: their own functions,
on models that transformers builds from the case's sizes, without weights).
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.bench.gpu.memory_configs import GROUPS, SIZES, Case
from tests.measure.memory.test_predict import BROKEN, MEASURED, peak, prediction

GIB = 1 << 30
ABOUT = """
measured: the fullest moment of the fullest GPU by NVML while every phase of the case ran: all models, optimizers,
  activations, logits, gathered layers, the allocator's slack, contexts. "none": it ran out of memory.
ours: rlcheck memory-profile, the same quantity. Fits: without the slack, which the allocator gives back when it must.
accelerate: `accelerate estimate-memory`, column "Training using Adam" of the row of the weights' type: model,
  gradients and Adam of one model without its head, on one GPU. No batch, no lengths, no sharding, no LoRA.
  Each trained model of the case is added up here, and a reference by its size: the command itself takes one model.
zero2, zero3: DeepSpeed's estimate_zero{2,3}_model_states_mem_needs without offload: 16-bit weights and gradients,
  float32 copies and Adam over the GPUs. No activations, no logits. Trained models are added up here.
The error is against the measured peak; a case that ran out of memory only counts for whether it fits.
"""


@dataclass
class Column:
    """One estimator: bytes of a case, or None where it says nothing about it."""

    name: str
    estimate: Callable[[Case], float | None]
    errors: list[float] = field(default_factory=list[float])
    right: int = 0
    asked: int = 0

    def cell(self, case: Case) -> str:
        """`12.3 (+4 %)`, counted."""
        size = self.estimate(case)
        if size is None:
            return "-"
        broken = BROKEN in MEASURED[case.name]
        self.asked += 1
        self.right += (self.needed(case, size) > prediction(case.name).usable_bytes) == broken
        if broken:
            return f"{size / GIB:.1f}"
        error = size / peak(case.name).measured - 1
        self.errors.append(abs(error))
        return f"{size / GIB:.1f} ({error:+.1%})"

    def needed(self, case: Case, size: float) -> float:
        """What must fit: only our prediction tells it from what is seen."""
        if self.name != "ours":
            return size
        return max(phase.needed_bytes for phase in prediction(case.name).phases if phase.pool == "train")

    def summary(self) -> str:
        """Errors and answers in a line."""
        middle, worst = statistics.median(self.errors), max(self.errors)
        return (
            f"{self.name:11} median error {middle:6.1%}, worst {worst:6.1%} of {len(self.errors)} cases that ran;"
            f" fits or not: right in {self.right} of {self.asked}"
        )


def _ours(case: Case) -> float:
    if BROKEN in MEASURED[case.name]:
        return max(phase.num_bytes for phase in prediction(case.name).phases if phase.pool == "train")
    return peak(case.name).predicted


@cache
def _model(name: str, head: bool) -> Any:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    sizes = dict(SIZES[name])
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    with torch.device("meta"):
        # As accelerate's own create_empty_model does: in float32.
        return (AutoModelForCausalLM if head else AutoModel).from_config(config, dtype=torch.float32)


def _accelerate(case: Case) -> float:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(_model(case.model, head=False))
    usage = estimate_training_usage(size, "float32" if case.dtype == "float32" else "float16")
    reference = size if case.dtype == "float32" else size / 2
    return max(usage.values()) * (2 if case.critic else 1) + (reference if case.ref else 0)


def _deepspeed(stage: int) -> Callable[[Case], float]:
    def estimate(case: Case) -> float:
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

        model = _model(case.model, head=True)
        # Its own model_to_params tells tensors apart by their address, which these have not.
        total = sum(parameter.numel() for parameter in model.parameters())
        largest = max(sum(one.numel() for one in module.parameters(recurse=False)) for module in model.modules())
        if stage == 2:
            _, gpu = zero2(total, num_gpus_per_node=case.gpus, cpu_offload=False)
        else:
            _, gpu, _ = zero3(total, largest, num_gpus_per_node=case.gpus, cpu_offload=False, cpu_offload_params=False)
        return gpu * (2 if case.critic else 1)

    return estimate


@contextmanager
def _quiet() -> Iterator[None]:
    """Libraries print while they are imported: to standard error with it."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = out


def columns() -> list[Column]:
    """The estimators that are here; a line for each that is not."""
    found = [Column("ours", _ours)]
    for name, made in (("accelerate", _accelerate), ("zero2", _deepspeed(2)), ("zero3", _deepspeed(3))):
        try:
            with _quiet():
                made(GROUPS["fit"][0])
        except ImportError as error:
            print(f"{name}: missing ({error})")
            continue
        found.append(Column(name, made))
    return found


def main() -> None:
    """The table, what each column is, and how far off each is."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    shown = columns()
    print(ABOUT)
    print(f"{'case':5}{'model':6}{'measured':>9}" + "".join(f"{one.name:>19}" for one in shown))
    for group in ("fit", "report", "two", "oom", "engines"):
        for case in GROUPS[group]:
            if case.name in MEASURED:
                # Nobody else says anything about a rollout engine.
                asked = shown[:1] if group == "engines" else shown
                broken = BROKEN in MEASURED[case.name]
                measured = "none" if broken else f"{peak(case.name).measured / GIB:.1f}"
                cells = "".join(f"{one.cell(case):>19}" for one in asked)
                print(f"{case.name:5}{case.model:6}{measured:>9}{cells}")
    print("\n" + "\n".join(one.summary() for one in shown))


if __name__ == "__main__":
    main()
