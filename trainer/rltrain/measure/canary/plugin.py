"""Forward passes of saved checkpoints on the CPU, over the tokens that a server was asked for and has sampled."""

# Transformers and peft are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcheck.facts.base import absent, known
from rlcheck.facts.canary import CanaryFacts, Distance, Split
from rltrain.core.errors import UserError
from rltrain.measure.report import Report, Tell

FINER = {"float32": torch.float64, "bfloat16": torch.float32, "float16": torch.float32}
KERNELS = 4.0
"""Another kernel rounds at other places and sums in another order: two such passes are apart by twice what each is from
the exact result, and the largest of few hundred tokens varies by as much again."""
MOST_TENSORS = 600
_SHOWN = 6


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Compare a server's log-probabilities with those of checkpoints.

    Args:
        request: `checkpoint`, `adapter` ("" without one) and `earlier`, directories; `dtype` of the server, `engine`'s;
            `direct` and `cached`: each a list of `ids`, the whole sequence, and `log_probs`, of its last tokens, from
            the server; `texts`: by text, the server's token ids.
        tell: called with `{"stage": …}` before each part, and with `{"partial": …}` after it.

    Returns:
        `rlcheck.facts.canary.CanaryFacts` as plain data.

    Raises:
        UserError: a directory that holds no model or adapter.
    """
    report = Report(tell, CanaryFacts())
    with report.stage("tokenizer"):
        report.add(splits=_splits(request), num_texts=len(request["texts"]))
    with report.stage("checkpoint"):
        model = _loaded(request["checkpoint"], request["adapter"])
        direct, cached = request["direct"], request["cached"]
        near = _distance("the checkpoint", model, direct)
        report.add(direct=known(near), cached=known(_distance("the checkpoint", model, cached)) if cached else
                   absent("the server was not asked for more tokens"))  # fmt: skip
    with report.stage("rounding"):
        rounding = _rounding(request, [*direct, *cached])
        report.add(rounding=known(rounding), bound_mean=KERNELS * rounding.mean,
                   bound_largest=KERNELS * rounding.largest)  # fmt: skip
    if not report.facts.within(near):
        _search(request, report, direct)
    return report.result()


def _search(request: Mapping[str, Any], report: Report[CanaryFacts], asked: Sequence[Mapping[str, Any]]) -> None:
    """Which other weights explain the server's values."""
    if request["adapter"]:
        with report.stage("without the adapter"):
            bare = _distance("the checkpoint without its adapter", _loaded(request["checkpoint"], ""), asked)
            report.add(others=(*report.facts.others, bare))
    for directory in request["earlier"]:
        with report.stage(f"earlier: {Path(directory).name}"):
            old = _loaded(directory, "")
            far = _distance(directory, old, asked)
            report.add(others=(*report.facts.others, far))
        if any(report.facts.within(other) for other in report.facts.others):
            return
        with report.stage("single tensors"):
            found = _stale(request, report.facts, old, asked)
            if found:
                report.add(stale_tensors=tuple(found), stale_from=directory)
                return


def _stale(
    request: Mapping[str, Any], facts: CanaryFacts, old: torch.nn.Module, asked: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The tensors that must be those of OLD for the server's values to come out; none where no few of them do."""
    model = _loaded(request["checkpoint"], request["adapter"])
    ours, theirs = dict(model.named_parameters()), dict(old.named_parameters())
    names = [name for name, value in ours.items() if name in theirs and not torch.equal(value, theirs[name])]
    quick = [min(asked, key=lambda one: len(one["ids"]))]
    for group in _groups(names[:MOST_TENSORS]):
        kept = {name: ours[name].detach().clone() for name in group}
        _put(ours, {name: theirs[name].detach() for name in group})
        hit = facts.within(_distance("", model, quick)) and facts.within(_distance("", model, asked))
        _put(ours, kept)
        if hit:
            return group
    return []


def _groups(names: Sequence[str]) -> Iterator[list[str]]:
    """Each tensor alone, what engines fuse (q, k and v; gate and up), and each layer."""
    yield from ([name] for name in names)
    fused: dict[str, list[str]] = {}
    for name in names:
        for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            for part in parts:
                if part in name:
                    fused.setdefault(name.replace(part, parts[0]), []).append(name)
        if ".layers." in name:
            fused.setdefault(".".join(name.split(".layers.")[1].split(".")[:1]) + " layer", []).append(name)
    yield from (group for group in fused.values() if len(group) > 1)


@torch.no_grad()
def _put(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


def _loaded(directory: str, adapter: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{directory} cannot be loaded as a model: {str(error).splitlines()[0]}") from None
    if adapter:
        peft: Any = importlib.import_module("peft")
        try:
            model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{adapter} cannot be loaded as an adapter: {str(error).splitlines()[0]}") from None
    return model.to(dtype).eval()


@torch.no_grad()
def _log_probs(model: torch.nn.Module, ids: Sequence[int], count: int) -> Tensor:
    """Of the last COUNT tokens of IDS, [COUNT] float64."""
    logits = model(torch.tensor([list(ids)])).logits[0, -count - 1 : -1]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    chosen = torch.log_softmax(wide, -1).gather(-1, torch.tensor(ids[-count:])[:, None])
    return chosen[:, 0].double()


def _distance(name: str, model: torch.nn.Module, asked: Sequence[Mapping[str, Any]]) -> Distance:
    apart = [
        (
            _log_probs(model, one["ids"], len(one["log_probs"])) - torch.tensor(one["log_probs"], dtype=torch.float64)
        ).abs()
        for one in asked
    ]
    return _of(name, torch.cat(apart))


def _of(name: str, apart: Tensor) -> Distance:
    apart = apart.nan_to_num(nan=float(torch.finfo(torch.float32).max))
    return Distance(name=name, mean=float(apart.mean()), largest=float(apart.max()), num_tokens=len(apart))


def _rounding(request: Mapping[str, Any], asked: Sequence[Mapping[str, Any]]) -> Distance:
    """The checkpoint in the server's dtype against itself in the next finer one."""
    name = request["dtype"]
    if name not in FINER:
        raise UserError(f"--dtype {name}: expected {', '.join(FINER)}, the dtype that the server computes in")
    models = [_loaded(request["checkpoint"], request["adapter"], one) for one in (getattr(torch, name), FINER[name])]
    apart = [
        (_log_probs(models[0], one["ids"], len(one["log_probs"]))
         - _log_probs(models[1], one["ids"], len(one["log_probs"]))).abs()
        for one in asked
    ]  # fmt: skip
    return _of(f"{name} against {str(FINER[name]).removeprefix('torch.')}", torch.cat(apart))


def _splits(request: Mapping[str, Any]) -> Any:
    if not request["texts"]:
        return absent("the server does not tokenize on request")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(request["checkpoint"], local_files_only=True)
    except (OSError, ValueError) as error:
        return absent(f"the checkpoint has no tokenizer: {str(error).splitlines()[0]}")
    found: list[Split] = []
    for text, theirs in request["texts"].items():
        ours = tokenizer.encode(text, add_special_tokens=False)
        if list(theirs) != list(ours):
            found.append(Split(text=text, server=tuple(theirs), checkpoint=tuple(ours)))
    return known(tuple(found[:_SHOWN]))
