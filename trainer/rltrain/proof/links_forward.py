"""The links of forward passes and of weights: engines, log-probabilities, values."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from rlcheck.facts.capsule import EngineRecord
from rlcheck.facts.step import Link
from rltrain.proof import anchor, compare, order
from rltrain.proof import model as models
from rltrain.proof.compare import Numbers, Unknown, absent, differs, same
from rltrain.proof.model import Tokens
from rltrain.proof.read import DTYPES, Case
from rltrain.proof.reference import Reference, Stat, policy_stat, value_stat

_TRIED_ROWS = 16


def engine_weights(ref: Reference) -> Link:
    """What engines held when they generated: the actor's weights of that time, in the engine's format."""
    versions, wanted = ref.case.batch.get("policy_version"), ref.case.head.policy_version
    if versions is not None and bool((versions != wanted).any()):
        old = sorted({int(version) for version in versions if int(version) != wanted})
        others = int((versions != wanted).sum())
        said = (
            f"{others} of {len(versions)} answers are by the weights of step {old[0]}, the actor had those of {wanted}"
        )
        return differs("engine-weights", said, len(versions))
    return _held(ref, "engine-weights", "before", "actor.before")


def engine_after(ref: Reference) -> Link:
    """What engines hold after the step: the actor's new weights."""
    return _held(ref, "engine-after", "after", "actor.after")


def _held(ref: Reference, name: str, when: str, moment: str) -> Link:
    records = [record for record in ref.case.head.engines if record.when == when]
    read = [record for record in records if record.held]
    if not read:
        why = next((record.missing for record in records if record.missing), "no checksums of engines were kept")
        raise Unknown(why)
    compared = 0
    for record in read:
        own = _checksums(ref, moment, record)
        wanted = {**record.actor, **own}
        bad = [tensor for tensor, value in wanted.items() if record.held.get(tensor) != value]
        compared += len(wanted)
        if bad:
            said = f"engine {record.engine} holds other numbers than the actor in {len(bad)} of {len(wanted)} tensors"
            return differs(name, said, compared, bad, _held_causes(ref, record, bad))
        if wrong := [tensor for tensor, value in own.items() if record.actor.get(tensor, value) != value]:
            said = f"the actor's own checksums are those of other weights in {len(wrong)} tensors"
            return differs(name, said, compared, wrong)
    most = max(record.tensors for record in read)
    part = f"{len(read[0].held)} of {most} tensors were read back from each engine"
    return same(name, compared, part if len(read[0].held) < most else "")


def _checksums(ref: Reference, moment: str, record: EngineRecord) -> dict[str, str]:
    """By name, of the tensors of MOMENT as RECORD's engine holds them; none where they are not whole."""
    weights, dtype = ref.case.weights.get(moment, {}), DTYPES.get(record.dtype)
    if not ref.case.whole or dtype is None:
        return {}
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    return {name: order.checksum(tensor) for name, tensor in cast.items() if name in record.held}


def _held_causes(ref: Reference, record: EngineRecord, bad: list[str]) -> list[str]:
    names = {"actor.before": "those before this step's update", "actor.after": "those after this step's update",
             "reference": "those that the run began with"}  # fmt: skip
    causes: list[str] = []
    for moment, words in names.items():
        found = _checksums(ref, moment, record)
        if found and all(found.get(name) == record.held.get(name) for name in bad):
            causes.append(f"the engine holds {words}")
    if not any(name in record.held for name in bad):
        causes.append("the engine has no tensors of these names")
    return causes


def engine_log_probs(ref: Reference) -> Link:
    """The engine's log-probabilities of its tokens, as it was asked to draw them."""
    case, asked = ref.case, ref.case.head.sampled
    found = case.batch.get("rollout_log_probs")
    recorded = torch.full(case.mask.shape, torch.nan)
    # Training reads those of some rows; the others are in the capsule's rows alone.
    drawn = case.batch.get("rollout_log_probs_asked", torch.ones(len(case.rows))).bool()[:, None]
    for at, row in enumerate(case.rows):
        if row.log_probs is not None:
            recorded[at, : len(row.log_probs)] = torch.tensor(
                [torch.nan if value is None else value for value in row.log_probs[: recorded.shape[1]]]
            )
    if found is None and all(row.log_probs is None for row in case.rows):
        if case.config("actor_rollout_ref.rollout.calculate_log_probs"):
            return differs("engine-log-probs", "the config asks for the engine's log-probabilities, there are none", 0)
        return absent("engine-log-probs", "the run keeps no log-probabilities of engines")
    if found is not None and not all(row.log_probs is None for row in case.rows):
        known = case.mask & ~recorded.isnan() & drawn
        numbers = Numbers(found, recorded, torch.full(case.mask.shape, compare.EPS), known)
        if bool(numbers.wrong.any()):
            return compare.judged("engine-log-probs", numbers, "nats", "log-probabilities that training got",
                                  compare.places(case.rows, numbers, {}, known), _row_causes(numbers))  # fmt: skip
    is_there = drawn | ~recorded.isnan()
    found = recorded if found is None else torch.where(drawn | recorded.isnan(), found, recorded)
    temperature = ref.temperature if asked is None else asked.temperature
    top_k, top_p = (-1, 1.0) if asked is None else (asked.top_k, asked.top_p)
    ends, least = _ends(ref), 0 if asked is None else asked.min_tokens

    def stat(model: Any, row: Tokens) -> tuple[Tensor, ...]:
        log_p = models.log_softmax(models.logits_of(model, row), temperature)
        banned = torch.zeros_like(log_p, dtype=torch.bool)
        banned[:least, ends] = True
        found = [models.picked(models.drawn_from(log_p, top_k, p, banned), row.answer) for p in _near(top_p)]
        # Rounding decides which token is the last of the set: where a hair more or less makes another, nothing is said.
        edge = (found[0] - found[-1]).abs() > 1e-3
        return found[len(found) // 2].masked_fill(edge, torch.nan), models.entropy(log_p)

    if top_k <= 0 and top_p >= 1 and not least:
        reading = ref.read("actor.before", "engine", f"policy {temperature}", policy_stat(temperature))
    else:
        reading = ref.read("actor.before", "engine", f"engine {temperature}", stat)
    # Which token is the last of the top-k is rounding's too: one that either side leaves out is not compared.
    kept = reading.exact[0].isfinite() & reading.noise[0].isfinite()
    numbers = reading.numbers(0, found, ref.read_mask & is_there & kept)
    plain = ref.temperature if asked is None else temperature
    causes = policy_causes(ref, numbers, "actor.before", "engine", plain)
    if bool(numbers.wrong.any()) and (top_k > 0 or top_p < 1):
        whole = ref.read("actor.before", "engine", f"policy {plain}", policy_stat(plain)).exact[0]
        causes += compare.explained(numbers, {"top-k and top-p are left out": whole})
    return compare.judged("engine-log-probs", numbers, "nats", "log-probabilities",
                          compare.places(case.rows, numbers, {}, case.mask), causes)  # fmt: skip


def _near(top_p: float) -> tuple[float, ...]:
    return (top_p,) if top_p >= 1 else (top_p * (1 - 1e-4), top_p, min(top_p * (1 + 1e-4), 1.0))


def _ends(ref: Reference) -> list[int]:
    """Tokens that end an answer, which `min_tokens` bans."""
    head, ends = ref.case.head, set[Any]()
    for config in (head.model_config, head.generation_config):
        listed = config.get("eos_token_id")
        ends |= {*(listed if isinstance(listed, list) else [listed])}
    for record in head.engines:
        ends |= {*record.sampling.get("end_tokens", ())}
    ends |= {
        getattr(ref.case.tokenizer, "eos_token_id", None),
        *(ref.case.head.sampled.stop_token_ids if ref.case.head.sampled else ()),
    }
    return sorted(
        end for end in ends if isinstance(end, int) and 0 <= end < head.model_config.get("vocab_size", end + 1)
    )


def _policy(ref: Reference, name: str, field: str, moment: str, role: str) -> Link:
    """A field of log-probabilities of a policy over the whole batch."""
    case, found = ref.case, ref.case.batch[field]
    reading = ref.read(moment, role, f"policy {ref.temperature}", policy_stat(ref.temperature))
    numbers = reading.numbers(0, found, ref.read_mask)
    places = compare.places(case.rows, numbers, ref.ranks, case.mask)
    causes = policy_causes(ref, numbers, moment, role, ref.temperature)
    links = [compare.judged(name, numbers, "nats", "log-probabilities", places, causes)]
    if field == "old_log_probs" and "entropys" in case.batch:
        entropies = reading.numbers(1, case.batch["entropys"], ref.read_mask)
        links.append(
            compare.judged(
                name, entropies, "nats", "entropies", compare.places(case.rows, entropies, ref.ranks, case.mask)
            )
        )
    return compare.mixed(name, links)


def old_log_probs(ref: Reference) -> Link:
    """The actor's log-probabilities before its update, or the engine's where the config says so."""
    case, name = ref.case, "old-log-probs"
    if "old_log_probs" not in case.batch:
        raise Unknown("the capsule has no old_log_probs")
    if case.config("algorithm.rollout_correction.bypass_mode"):
        numbers = Numbers(
            case.batch["old_log_probs"], case.batch["rollout_log_probs"], torch.zeros(case.mask.shape), case.mask
        )
        return compare.judged(
            name, numbers, "nats", "log-probabilities", compare.places(case.rows, numbers, {}, case.mask)
        )
    return _policy(ref, name, "old_log_probs", "actor.before", "actor")


def reference_log_probs(ref: Reference) -> Link:
    """The reference policy's log-probabilities."""
    case, name = ref.case, "reference-log-probs"
    asked = case.config("actor_rollout_ref.actor.use_kl_loss") or case.config("algorithm.use_kl_in_reward")
    if "ref_log_probs" not in case.batch:
        said = "the config asks for a KL to the reference, and there are no log-probabilities of it"
        return differs(name, said, 0) if asked else absent(name, "the run has no reference policy")
    try:
        held = anchor.reference(case, name)
    except Unknown as error:
        held = Link(name=name, status="unknown", said=f"nothing says that it is the right model: {error}")
    if held.status == "differs":
        return held
    read = _policy(ref, name, "ref_log_probs", "reference", "reference")
    if held.status == "unknown" and read.status == "same":
        return held
    return replace(read, said="; ".join(filter(None, (held.said, read.said)))) if read.status == "same" else read


def has_critic(case: Case) -> bool:
    """Whether the config asks for a critic."""
    asked = case.config("critic.enable")
    return case.config("algorithm.adv_estimator") == "gae" if asked is None else bool(asked)


def values(ref: Reference) -> Link:
    """The critic's values before its update."""
    case = ref.case
    if has_critic(case) != ("values" in case.batch):
        said = "the config asks for a critic, and there are no values"
        return differs("values", said if has_critic(case) else "there are values, and the config asks for no critic", 0)
    if "values" not in case.batch:
        return absent("values", "the run has no critic")
    reading = ref.read("critic.before", "critic", "values", value_stat)
    numbers = reading.numbers(0, case.batch["values"], ref.read_mask)
    causes: list[str] = []
    if bool(numbers.wrong.any()):
        exact = reading.exact[0]
        tries = {
            "those one token later": exact.roll(-1, 1),
            "those one token earlier": exact.roll(1, 1),
            "with the opposite sign": -exact,
        }
        tries |= _other_rows(exact)
        causes = compare.explained(numbers, tries | _variants(ref, numbers, "critic.before", "critic", value_stat))
        causes = causes or compare.explained(numbers, {"the head's bias or scale": _line(numbers)})
    return compare.judged(
        "values", numbers, "", "values", compare.places(case.rows, numbers, ref.ranks, case.mask), causes
    )


def _line(numbers: Numbers) -> Tensor:
    """The straight line through FOUND over WANTED."""
    x, y = numbers.wanted[numbers.mask].double(), numbers.found[numbers.mask].double()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum().clamp(min=1e-30)
    return y.mean() + slope * (numbers.wanted - x.mean())


def _other_rows(exact: Tensor) -> dict[str, Tensor]:
    return {f"those of the row {'before' if by > 0 else 'after'}": exact.roll(by, 0) for by in (1, -1)}


def _row_causes(numbers: Numbers) -> list[str]:
    tries = _other_rows(numbers.wanted) | {
        "one token later": numbers.wanted.roll(-1, 1),
        "one token earlier": numbers.wanted.roll(1, 1),
    }
    return compare.explained(numbers, tries)


def policy_causes(ref: Reference, numbers: Numbers, moment: str, role: str, temperature: float) -> list[str]:
    """What would explain log-probabilities that differ: each is tried, on the rows that differ most."""
    if not bool(numbers.wrong.any()):
        return []
    tries = _other_rows(numbers.wanted) | {
        "one token later": numbers.wanted.roll(-1, 1),
        "one token earlier": numbers.wanted.roll(1, 1),
    }
    causes = compare.explained(numbers, tries)
    if causes:
        return causes
    stat = policy_stat(temperature)
    tries = _variants(ref, numbers, moment, role, stat)
    model = ref.model(moment, ref.compute(role), torch.float64)
    rows = _tried(ref, numbers)
    for other in dict.fromkeys((1.0, temperature**2, 1 / temperature)):
        if other != temperature:
            tries[f"goes away at temperature {other:.4g}"] = ref.fields(model, policy_stat(other), rows)[0]
    tries |= _shaped(ref, model, rows, temperature)
    causes = compare.explained(_of(numbers, rows), tries)
    return causes[:3] or _solved(ref, numbers, model, rows, temperature)


def _tried(ref: Reference, numbers: Numbers) -> dict[int, Tokens]:
    worst: Any = numbers.gaps.where(numbers.wrong, 0.0).amax(-1).sort(descending=True, stable=True).indices.tolist()
    return {row: ref.tokens[row] for row in worst[:_TRIED_ROWS] if row in ref.tokens}


def _of(numbers: Numbers, rows: Mapping[int, Tokens]) -> Numbers:
    chosen = torch.zeros(len(numbers.mask), 1, dtype=torch.bool)
    chosen[list(rows)] = True
    return Numbers(numbers.found, numbers.wanted, numbers.noise, numbers.mask & chosen, numbers.coarse)


def _variants(ref: Reference, numbers: Numbers, moment: str, role: str, stat: Stat) -> dict[str, Tensor]:
    """The rows that differ most, read otherwise: other weights, prompts, positions."""
    rows, compute, tries = _tried(ref, numbers), ref.compute(role), dict[str, Tensor]()
    model, pad = ref.model(moment, compute, torch.float64), getattr(ref.case.tokenizer, "pad_token_id", None) or 0
    width = ref.case.batch["input_ids"].shape[1] - ref.case.mask.shape[1]
    begin = getattr(ref.case.tokenizer, "bos_token_id", None)
    changes: dict[str, Callable[[Tokens], Tokens]] = {
        "positions count from 1": lambda row: Tokens(row.prompt, row.answer, 1),
        "positions count the padding": lambda row: Tokens(row.prompt, row.answer, width - len(row.prompt)),
        "the padding is attended to": lambda row: Tokens([pad] * (width - len(row.prompt)) + row.prompt, row.answer),
        "the prompt without its first token": lambda row: Tokens(row.prompt[1:] or row.prompt, row.answer),
        "the prompt without its last token": lambda row: Tokens(row.prompt[:-1] or row.prompt, row.answer),
    }
    if isinstance(begin, int):
        changes["the prompt with a token that begins a text"] = lambda row: Tokens([begin, *row.prompt], row.answer)
    for name, change in changes.items():
        changed = {at: change(row) for at, row in rows.items()}
        if any(changed[at] != row for at, row in rows.items()):
            tries[name] = ref.fields(model, stat, changed)[0]
    family = ("critic.after",) if role == "critic" else ("actor.before", "actor.after", "reference")
    for other in family:
        if other != moment and other in ref.case.weights and ref.case.whole:
            words = {"after": "the weights after this step's update", "before": "the actor's weights"}
            tries[words.get(other.partition(".")[2], "the reference's weights")] = ref.fields(
                ref.model(other, compute, torch.float64), stat, rows
            )[0]
    return tries


def _shaped(ref: Reference, model: Any, rows: Mapping[int, Tokens], temperature: float) -> dict[str, Tensor]:
    """Other things than log p of the token: logits, logits in bfloat16, the likeliest token."""

    def stat(model: Any, row: Tokens) -> tuple[Tensor, ...]:
        logits = models.logits_of(model, row)
        rounded = models.log_softmax(logits.bfloat16().double(), temperature)
        sharp = models.log_softmax(logits, temperature)
        low = models.picked(sharp, row.answer).bfloat16().double()
        return (
            models.picked(logits, row.answer),
            models.picked(rounded, row.answer),
            low,
            sharp.amax(-1),
            models.picked(sharp.exp(), row.answer),
        )

    names = ("logits, not log-probabilities", "logits rounded to bfloat16", "log-probabilities rounded to bfloat16",
             "those of the likeliest tokens", "probabilities, not their logarithms")  # fmt: skip
    return dict(zip(names, ref.fields(model, stat, rows), strict=True))


def _solved(ref: Reference, numbers: Numbers, model: Any, rows: Mapping[int, Tokens], temperature: float) -> list[str]:
    """The temperature that fits best, where one does."""
    chosen = _of(numbers, rows)

    def left(log_t: float) -> float:
        tried = ref.fields(model, policy_stat(2.718281828**log_t), rows)[0]
        return compare.rms((numbers.found.double() - tried)[chosen.wrong])

    low, high = -1.6, 1.6
    for _ in range(18):
        third = (high - low) / 3
        low, high = (low, high - third) if left(low + third) < left(high - third) else (low + third, high)
    best = 2.718281828 ** ((low + high) / 2)
    if left((low + high) / 2) < 0.1 * compare.rms(chosen.gaps[chosen.wrong]):
        return [f"goes away at temperature {best:.4g}, the config says {temperature:.4g}"]
    share = float(chosen.wrong.sum()) / max(float(chosen.mask.sum()), 1)
    sign = float((numbers.found.double() - numbers.wanted)[chosen.wrong].sign().mean())
    return ["differences of both signs in every row, as dropout makes"] if share > 0.5 and abs(sign) < 0.8 else []
