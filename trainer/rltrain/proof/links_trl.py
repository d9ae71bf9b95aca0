"""The links of a step of TRL's GRPOTrainer that are other than those of a trainer with engines and ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.step import Link
from rltrain.proof import compare, links_data, links_forward, links_gradient, links_optimizer, links_update
from rltrain.proof.compare import EPS, Numbers, Unknown, absent, differs, row_name, same
from rltrain.proof.reference import Reference
from rltrain.proof.score import NoScore, scores
from rltrain.proof.trl_update import advantages as formula
from rltrain.proof.trl_update import totals

_CALL_S = 120.0


def _args(ref: Reference) -> Mapping[str, Any]:
    return ref.case.config("trl")


def prompts(ref: Reference) -> Link:
    """Groups of `num_generations` neighbours with one prompt and one row of the data set; not which rows."""
    rows, n = ref.case.rows, int(_args(ref)["num_generations"])
    odd = [at for at, row in enumerate(rows) if (row.messages, row.prompt_text, row.prompt_ids, row.extra_info)
           != (rows[at - at % n].messages, rows[at - at % n].prompt_text, rows[at - at % n].prompt_ids,
               rows[at - at % n].extra_info)]  # fmt: skip
    size = int(_args(ref)["generation_batch_size"])
    if odd or len(rows) % n or (ref.case.head.world_size == 1 and len(rows) % size):
        said = f"{len(odd)} of {len(rows)} rows have another prompt than the first of their group of {n}"
        return differs("prompts", said, len(rows), [row_name(rows[at], at) for at in odd])
    return same("prompts", len(rows), "which rows of the data set these are was not recomputed")


def answers(ref: Reference) -> Link:
    """As of any trainer; answers that a mask shortens are not judged."""
    if _args(ref).get("mask_truncated_completions"):
        raise Unknown("TRL masks answers that were cut off, and the capsule does not say which")
    if (ref.case.mask.sum(-1) != ref.case.batch["attention_mask"][:, -ref.case.mask.shape[1] :].sum(-1)).any():
        raise Unknown("answers of tools are masked within, and are not judged")
    return links_data.answers(ref)


def engine_log_probs(ref: Reference) -> Link:
    """TRL generates with the trained model and keeps no log-probabilities of it, except with vLLM."""
    if "rollout_log_probs" in ref.case.batch:
        raise Unknown("log-probabilities of vLLM were kept, and are not recomputed for TRL")
    return absent("engine-log-probs", "TRL keeps no log-probabilities of its own generation")


def old_log_probs(ref: Reference) -> Link:
    """Kept where a generation serves several optimizer steps; else the pass that learns stands for them."""
    args, name = _args(ref), "old-log-probs"
    every = int(args["steps_per_generation"]) * int(args["num_iterations"])
    needed = bool(int(args["gradient_accumulation_steps"]) % every) or bool(args.get("use_vllm"))
    if "old_log_probs" in ref.case.batch:
        return links_forward.old_log_probs(ref)
    if needed:
        return differs(name, f"a generation serves {every} passes, and there are no old log-probabilities", 0)
    return absent(name, "one optimizer step: TRL takes those of the pass that learns")


def reference_log_probs(ref: Reference) -> Link:
    """As of any trainer; at the first step the reference's weights are the actor's."""
    found, weights = links_forward.reference_log_probs(ref), ref.case.weights
    first, own = weights.get("actor.before", {}), weights.get("reference", {})
    if ref.case.head.policy_version or found.status == "differs":
        return found
    odd = [name for name, tensor in own.items() if name in first and not torch.equal(tensor, first[name])]
    if odd:
        said = f"before any update the reference differs from the actor in {len(odd)} of {len(own)} tensors"
        return differs(found.name, said, len(own), odd, ["the reference is another model than the run began with"])
    return found


def rewards(ref: Reference) -> Link:
    """The sum by the config's weights, its mean as logged; the functions themselves with `--score FILE`."""
    case, names = ref.case, [str(name) for name in _args(ref).get("reward_funcs") or ()]
    parts, weights = _parts(ref, names), _weights(ref, names)
    wanted = totals(parts, weights)
    mask = ~wanted.isnan()
    found = torch.tensor([row.score for row in case.rows]).double()
    size = EPS * parts.abs().nan_to_num(0.0).sum(-1).clamp(min=1.0)
    summed = Numbers(found[:, None], wanted[:, None], size[:, None], mask[:, None])
    causes = _weight_causes(names, parts, weights, found) if bool(summed.wrong.any()) else []
    places = compare.places(case.rows, summed, {}, summed.mask)
    links = [compare.judged("rewards", summed, "", "weighted sums", places, causes)]
    logged = case.head.metrics.get("reward")
    if logged is not None and case.head.world_size == 1:
        last = wanted[-int(_args(ref)["generation_batch_size"]) :]
        mean = Numbers(torch.tensor([[logged]]).double(), last.nanmean().reshape(1, 1),
                       size.mean().reshape(1, 1), torch.ones(1, 1, dtype=torch.bool))  # fmt: skip
        links.append(compare.judged("rewards", mean, "", "means of rewards as logged"))
    links += [_function(ref, names, at) for at in range(len(names))]
    result = compare.mixed("rewards", links)
    unknown = next((link for link in links if link.status == "unknown"), None)
    return result if unknown is None or result.status == "differs" else unknown


def _function(ref: Reference, names: list[str], at: int) -> Link:
    name, rows, size = names[at], ref.case.rows, int(_args(ref)["generation_batch_size"])
    if ref.score is None:
        said = f"the functions {', '.join(names)} were not run: `rlcheck step CAPSULE --score FILE` judges them"
        return Link(name="rewards", status="unknown", said=said)
    calls: list[dict[str, Any]] = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        columns = {key: [row.extra_info.get(key) for row in some] for key in some[0].extra_info}
        chat = bool(some[0].messages)
        calls.append({**columns, "prompts": [[*row.messages] if chat else row.prompt_text for row in some],
                      "completions": [[{"role": "assistant", "content": row.text}] if chat else row.text
                                      for row in some],
                      "completion_ids": [[*(row.response_ids or ())] for row in some],
                      "trainer_state": None})  # fmt: skip
    try:
        answers = scores(ref.score, name, calls, [str(number) for number in range(len(calls))], _CALL_S, batch=True)
    except NoScore as error:
        return Link(name="rewards", status="unknown", said=f"--score: {error}")
    if not all(isinstance(answer, list) for answer in answers) or sum(map(len, answers)) != len(rows):
        return Link(name="rewards", status="unknown", said=f"--score: '{name}' does not return a number of each row")
    wanted = torch.tensor([torch.nan if one is None else one for answer in answers for one in answer]).double()
    found = torch.tensor([row.reward_parts.get(name, torch.nan) for row in rows]).double()
    numbers = Numbers(found[:, None], wanted[:, None], EPS * wanted.abs().clamp(min=1.0)[:, None],
                      ~(wanted.isnan() & found.isnan())[:, None])  # fmt: skip
    places = compare.places(rows, numbers, {}, numbers.mask)
    n = int(_args(ref)["num_generations"])
    tries = {"with the opposite sign": -wanted, "those of the row before": wanted.roll(1),
             "those of the row after": wanted.roll(-1), "those of the prompt before": wanted.roll(n)}  # fmt: skip
    causes = compare.explained(numbers, {words: tried[:, None] for words, tried in tries.items()})
    return compare.judged("rewards", numbers, "", f"rewards of '{name}'", places, causes)


def _parts(ref: Reference, names: list[str]) -> Tensor:
    if not names:
        raise Unknown("the capsule does not name reward functions")
    return torch.tensor([[row.reward_parts.get(name, torch.nan) for name in names] for row in ref.case.rows]).double()


def _weights(ref: Reference, names: list[str]) -> Tensor:
    given = _args(ref)["reward_weights"]
    if given is not None and len(given) != len(names):
        raise Unknown(f"{len(given)} reward_weights for {len(names)} functions")
    return torch.ones(len(names)).double() if given is None else torch.tensor([float(one) for one in given]).double()


def _weight_causes(names: list[str], parts: Tensor, weights: Tensor, found: Tensor) -> list[str]:
    solved = torch.linalg.lstsq(parts.nan_to_num(0.0), found[:, None]).solution[:, 0]
    left = (parts.nan_to_num(0.0) @ solved - found).abs().max()
    if float(left) > 1e-5 * float(found.abs().max().clamp(min=1e-30)):
        return []
    pairs = zip(names, solved.tolist(), weights.tolist(), strict=True)
    return [f"the weight of '{name}' is {has:.4g}, the config says {right:g}" for name, has, right in pairs
            if abs(has - right) > 1e-4 * max(abs(right), 1.0)]  # fmt: skip


def advantages(ref: Reference) -> Link:
    """From the functions' rewards by the config's weights and scaling."""
    case, args = ref.case, _args(ref)
    names, n = [str(name) for name in args.get("reward_funcs") or ()], int(args["num_generations"])
    scale = args["scale_rewards"] == "batch" or args["multi_objective_aggregation"] != "sum_then_normalize"
    if scale and case.head.world_size > 1:
        raise Unknown("they are scaled over the whole batch, and the capsule has the rows of one process")
    parts, weights = _parts(ref, names), _weights(ref, names)
    signs = torch.where(torch.rand(parts.shape, generator=torch.Generator().manual_seed(7)) < 0.5, -1.0, 1.0)
    size = max(int(args["generation_batch_size"]) // case.head.world_size, n)

    def wanted(dtype: torch.dtype, changed: Mapping[str, Any], shake: float = 0.0) -> Tensor:
        chosen, moved = {**args, **changed}, (parts * (1 + shake * signs)).to(dtype)
        used = torch.as_tensor(changed.get("weights", weights)).to(dtype)
        each = [formula(some, used, n, chosen) for some in moved.split(size)]
        return torch.where(case.mask, torch.cat(each)[:, None], torch.zeros(1, dtype=dtype))

    exact = wanted(torch.float64, {})
    noise = torch.maximum((wanted(torch.float32, {}).double() - exact).abs(),
                          (wanted(torch.float64, {}, EPS) - exact).abs())  # fmt: skip
    numbers = Numbers(case.batch["advantages"], exact, noise.amax(-1, keepdim=True).expand_as(exact), case.mask)
    causes = compare.explained(numbers, _tried(numbers, wanted, weights)) if bool(numbers.wrong.any()) else []
    places = compare.places(case.rows, numbers, {}, case.mask)
    return compare.judged("advantages", numbers, "", "advantages", places, causes)


def _tried(numbers: Numbers, wanted: Callable[..., Tensor], weights: Tensor) -> dict[str, Tensor]:
    exact, mask = numbers.wanted, numbers.mask
    of_row = exact.sum(-1) / mask.sum(-1).clamp(min=1)
    factor = float((numbers.found.double() * exact).sum() / exact.square().sum().clamp(min=1e-30))
    tries = {"with the opposite sign": -exact, "those of the row before": of_row.roll(1)[:, None] * mask,
             "those of the row after": of_row.roll(-1)[:, None] * mask,
             f"times {factor:.4g}": exact * factor}  # fmt: skip
    for kind in ("group", "batch", "none"):
        changed = {"scale_rewards": kind, "multi_objective_aggregation": "sum_then_normalize"}
        tries[f"scale_rewards '{kind}'"] = wanted(torch.float64, changed)
    tries["multi_objective_aggregation 'normalize_then_sum'"] = wanted(
        torch.float64, {"multi_objective_aggregation": "normalize_then_sum"}
    )
    if len(weights) > 1:
        tries["every reward with weight 1"] = wanted(torch.float64, {"weights": torch.ones_like(weights)})
        for at in range(len(weights)):
            less = weights.clone()
            less[at] = 0
            tries[f"without reward {at + 1}"] = wanted(torch.float64, {"weights": less})
    return tries


def update_rows(ref: Reference) -> Link:
    """Every row is in one pass of each iteration; passes have the config's sizes, and carry what was computed."""
    args, update = _args(ref), links_update.updates(ref)[0]
    every = int(args["steps_per_generation"]) * int(args["num_iterations"])
    steps = int(args["gradient_accumulation_steps"])
    minis, size = max(every // steps, 1), int(args["per_device_train_batch_size"])
    if max(every, steps) % min(every, steps):
        raise Unknown(f"generations of {every} passes and optimizer steps of {steps} overlap")
    if len(update.minis) != minis:
        return differs("update-rows", f"{len(update.minis)} optimizer steps, the config asks for {minis}", minis)
    for number, mini in enumerate(update.minis):
        sizes = [len(micro.rows) for micro in mini.micro_batches]
        if sizes != [size] * steps:
            said = f"optimizer step {number} has passes of {sizes} rows, the config asks for {steps} of {size}"
            return differs("update-rows", said, steps)
    times = Counter(row for mini in update.minis for micro in mini.micro_batches for row in micro.rows)
    odd = [row for row in range(len(ref.case.rows)) if times[row] != int(args["num_iterations"])]
    if odd:
        said = f"{len(odd)} of {len(ref.case.rows)} rows are not learnt from {args['num_iterations']} times"
        return differs("update-rows", said, len(times), [row_name(ref.case.rows[row], row) for row in odd])
    links = [link for number in range(minis) for link in links_update.copies(ref, update, number)]
    return compare.mixed("update-rows", [same("update-rows", len(times)), *links])


def _of_one_process(link: Callable[[Reference], Link]) -> Callable[[Reference], Link]:
    def judged(ref: Reference) -> Link:
        if ref.case.head.world_size > 1:
            raise Unknown(f"it is summed over {ref.case.head.world_size} processes, the capsule has the rows of one")
        return link(ref)

    return judged


PROOFS: Mapping[str, Callable[[Reference], Link]] = {
    "prompts": prompts,
    "answers": answers,
    "engine-log-probs": engine_log_probs,
    "old-log-probs": old_log_probs,
    "reference-log-probs": reference_log_probs,
    "rewards": rewards,
    "advantages": advantages,
    "update-rows": update_rows,
    "loss": _of_one_process(links_update.loss),
    "gradient": _of_one_process(links_gradient.gradient),
    "optimizer": _of_one_process(links_optimizer.optimizer),
}
"""Links that are judged otherwise than of rltrain's steps."""
