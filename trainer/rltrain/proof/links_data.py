"""The links from data to answers: prompts, their tokens, what engines were asked for, answers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from zlib import crc32

import torch

from rlcheck.facts.capsule import CapsuleRow
from rlcheck.facts.step import Link
from rltrain.proof import order
from rltrain.proof.compare import Unknown, differs, row_name, same
from rltrain.proof.read import Case
from rltrain.proof.reference import Reference

_MOST_DRAWN = 40_000_000
"""Numbers drawn in search of the data set's size."""
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
            "logit_bias": None, "allowed_token_ids": None, "bad_words": ()}  # fmt: skip
"""Settings of engines that the config does not have, and their values that change nothing."""
_MOST_TRIED = 64
"""Sizes at which other orders are tried."""


def prompts(ref: Reference) -> Link:
    """Which rows of the data set: the order that seed and epoch give, each with `rollout.n` answers."""
    case, n = ref.case, int(ref.case.config("actor_rollout_ref.rollout.n", 1))
    rows, per_step = case.rows, int(case.config("data.train_batch_size"))
    if not 1 <= n <= max(len(rows), 1):
        return differs("prompts", f"there are {len(rows)} answers, the config asks for {n} to each prompt", len(rows))
    uids = list(dict.fromkeys(row.uid for row in rows))
    wanted = [(uid, sample) for uid in uids for sample in range(n)]
    odd = [at for at, (row, key) in enumerate(zip(rows, wanted, strict=False)) if (row.uid, row.sample) != key]
    few = case.head.kept_rows is not None  # the first prompts, each with all its answers
    if (len(uids) != per_step and not (few and len(uids) < per_step)) or len(rows) != len(wanted) or odd:
        said = f"{len(uids)} prompts with {len(rows)} answers, the config asks for {per_step} with {n} each"
        return differs("prompts", said, len(rows), [row_name(rows[at], at) for at in odd])
    first = {row.uid: row for row in reversed(rows)}
    odd = [at for at, row in enumerate(rows) if _prompt(row) != _prompt(first[row.uid])]
    if odd or any(row.uid.rpartition("-")[2] != str(row.index) for row in rows):
        said = f"{len(odd)} rows have another prompt or ground truth than the first of their group"
        return differs("prompts", said, len(rows), [row_name(rows[at], at) for at in odd])
    if case.config("algorithm.filter_groups.enable"):
        return same("prompts", len(rows), "dynamic sampling draws more prompts: their order was not recomputed")
    return _in_order(ref, uids, per_step)


def _prompt(row: CapsuleRow) -> tuple[Any, ...]:
    return row.messages, row.prompt_ids, row.ground_truth, row.data_source


def _in_order(ref: Reference, uids: list[str], per_step: int) -> Link:
    case, head = ref.case, ref.case.head
    seed, shuffle = case.config("data.seed"), bool(case.config("data.shuffle", True))
    seed = head.seed if seed is None else int(seed)
    sizes = list(_sizes(ref, max(row.index for row in case.rows), per_step))
    for size in sizes:
        if size > _MOST_DRAWN:
            raise Unknown(f"the data set has {size} rows: their order is too long to be drawn here")
        if order.prompts_of(head.step, per_step, size, seed, shuffle)[: len(uids)] == uids:
            return same("prompts", len(uids), f"the order of a data set of {size} rows")
    near = {1, *range(max(head.step - 2, 1), head.step + 3)}
    others = {f"they are those of step {step}": (step, seed, shuffle) for step in sorted(near)}
    others |= {
        f"the order of seed {seed + more}": (head.step, seed + more, shuffle) for more in (-1, 1, head.seed - seed)
    }
    others |= {"the order of the files, not shuffled" if shuffle else "shuffled": (head.step, seed, not shuffle)}
    causes: list[str] = []
    for size in sizes[:_MOST_TRIED]:
        for cause, (step, other, mixed) in others.items():
            found = order.prompts_of(step, per_step, size, other, mixed)[: len(uids)]
            if sorted(found) == sorted(uids):
                causes.append(cause if found == uids else f"{cause}, in another order")
        if causes:
            break
    if not head.data_rows and len(sizes) >= _MOST_TRIED:
        raise Unknown("the capsule does not say how large the data set is, and it is too large to try")
    return differs("prompts", f"no data set size gives these prompts at step {head.step} by seed {seed}", len(uids),
                   [f"the first are {', '.join(uids[:4])}"], causes[:3])  # fmt: skip


def _sizes(ref: Reference, largest: int, per_step: int) -> Iterator[int]:
    """Sizes that the data set may have: what a toy says, then from the largest index on."""
    if ref.case.head.data_rows:
        yield ref.case.head.data_rows
        return
    toy, limit = ref.case.config("toy.num_train"), int(ref.case.config("data.train_max_samples", -1))
    if toy is not None and int(toy) > largest and not ref.case.config("data.train_files"):
        yield min(int(toy), limit) if limit > 0 else int(toy)
    room = _MOST_DRAWN
    for size in range(max(largest + 1, per_step), int((largest + 1) * (1 + 20 / per_step)) + per_step + 1):
        if (room := room - size) < 0:
            return
        yield size


def prompt_ids(ref: Reference) -> Link:
    """The chat template on the messages gives the text and the tokens; engine and training read these."""
    case, tokenizer = ref.case, ref.case.tokenizer
    digests = case.batch.get("rollout_prompt_digests")
    bad: list[tuple[int, str]] = []
    for number, row in enumerate(case.rows):
        ids = list(row.prompt_ids)
        if case.tokens(number)[0] != ids:
            bad.append((number, "training reads another prompt than was sent"))
        elif digests is not None and int(digests[number]) != crc32(torch.tensor(ids).numpy().tobytes()):
            bad.append((number, "the engine read another prompt than was sent"))
        elif tokenizer is not None:
            text, wanted = _encoded(ref, row, {"add_generation_prompt": True})
            if wanted != ids:
                bad.append((number, f"{len(ids)} tokens, the chat template gives {len(wanted)}"))
            elif text is not None and row.prompt_text and text != row.prompt_text:
                bad.append((number, "the text is another one than the chat template's"))
    if bad and "strftime_now" in str(getattr(tokenizer, "chat_template", "")) and not case.head.begun:
        raise Unknown("the chat template writes today's date, and the capsule does not say when the run began")
    if bad:
        causes = _prompt_causes(ref, case.rows[bad[0][0]]) if tokenizer is not None else []
        return differs("prompt-ids", f"{len(bad)} of {len(case.rows)} prompts differ: {bad[0][1]}", len(case.rows),
                       [f"{row_name(case.rows[at], at)}: {why}" for at, why in bad], causes)  # fmt: skip
    said = "" if tokenizer is not None else "the capsule has no tokenizer: the chat template was not applied"
    return same("prompt-ids", len(case.rows), said)


def _encoded(ref: Reference, row: CapsuleRow, how: dict[str, Any]) -> tuple[str | None, list[int]]:
    """Text (None: cut) and tokens of the prompt of ROW."""
    tokenizer, case = ref.case.tokenizer, ref.case
    if custom := case.config("actor_rollout_ref.model.custom_chat_template"):
        tokenizer.chat_template = custom
    if not row.messages:
        return row.prompt_text, list(tokenizer(row.prompt_text)["input_ids"])
    chat = [dict(message) for message in row.messages]
    # A template that writes today's date wrote that of the run.
    day = {"strftime_now": _begun(case.head.begun).strftime} if case.head.begun else {}
    settings = {**day, **(case.config("data.apply_chat_template_kwargs") or {}), **how}
    if tokenizer.chat_template is None:
        text, ids = chat[0]["content"], tokenizer(chat[0]["content"])["input_ids"]
    else:
        text = tokenizer.apply_chat_template(chat, tokenize=False, **settings)
        ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False, **settings)
    limit, cut = int(case.config("data.max_prompt_length")), case.config("data.truncation")
    if len(ids) <= limit or cut == "error":
        return text, list(ids)
    head = {"left": 0, "right": limit, "middle": limit // 2}[cut]
    return None, [*ids[:head], *ids[len(ids) - limit + head :]]


def _begun(said: str) -> datetime:
    try:
        return datetime.fromisoformat(said)
    except ValueError:
        raise Unknown(f"the capsule's `begun` is no date: {said[:40]}") from None


def _prompt_causes(ref: Reference, row: CapsuleRow) -> list[str]:
    tokenizer, ids = ref.case.tokenizer, list(row.prompt_ids)
    tries: dict[str, Callable[[], list[int]]] = {
        "without the words that begin the answer": lambda: _encoded(ref, row, {"add_generation_prompt": False})[1],
        "the text tokenized with special tokens added": lambda: tokenizer(row.prompt_text)["input_ids"],
        "the first token is missing": lambda: _encoded(ref, row, {"add_generation_prompt": True})[1][1:],
        "the last token is missing": lambda: _encoded(ref, row, {"add_generation_prompt": True})[1][:-1],
    }
    return [cause for cause, make in tries.items() if make() == ids]


def sampling(ref: Reference) -> Link:
    """What engines were asked for: the config's sampling, and each request's seed."""
    case, asked = ref.case, ref.case.head.sampled
    if asked is None:
        raise Unknown("the capsule does not say what engines were asked for")
    names = ("temperature", "top_p", "top_k", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
    wanted = {name: case.config(f"actor_rollout_ref.rollout.{name}") for name in names}
    wanted["max_tokens"] = case.config("data.max_response_length")
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in wanted.items()}
    bad = [f"{name} was {getattr(asked, name)}, the config says {value}" for name, value in plain.items()
           if value is not None and getattr(asked, name) != value]  # fmt: skip
    if bad:
        return differs("sampling", bad[0], len(plain), bad)
    if bad := _made_of(case, plain):
        return differs("sampling", bad[0], len(plain), bad)
    step, seed = case.head.step, case.head.seed
    rows = [row for row in case.rows if row.seed is not None]
    odd = [at for at, row in enumerate(rows) if row.seed != order.request_seed(seed, step, row.uid, row.sample)]
    if odd:
        tries: dict[str, Callable[[CapsuleRow], int]] = {
            "all answers to a prompt have the seed of the first": lambda row: order.request_seed(
                seed, step, row.uid, 0
            ),
            "the seeds of the step before": lambda row: order.request_seed(seed, step - 1, row.uid, row.sample),
            "the seeds of step 1": lambda row: order.request_seed(seed, 1, row.uid, row.sample),
            "one seed for all": lambda _: rows[0].seed or 0,
        }
        causes = [cause for cause, of in tries.items() if all(of(row) == row.seed for row in rows)]
        said = f"{len(odd)} of {len(rows)} requests have other seeds than seed {seed}, step {step}, prompt, sample give"
        return differs("sampling", said, len(rows), [row_name(rows[at], at) for at in odd], causes[:1])
    notes = [] if rows else ["no seeds of requests were recorded"]
    heard = any(record.sampling for record in case.head.engines)
    notes += [] if heard else ["what engines made of what they were asked for was not recorded"]
    return same("sampling", len(plain) + len(rows), "; ".join(notes))


def _made_of(case: Case, wanted: Mapping[str, Any]) -> list[str]:
    """What engines made of the sampling that they were asked for, where it is not what the config says."""
    bad: list[str] = []
    for record in case.head.engines:
        made = {name: tuple(value) if isinstance(value, list) else value for name, value in record.sampling.items()}
        if wanted["temperature"] == 0:
            made = {name: value for name, value in made.items() if name not in ("top_p", "top_k")}  # greedy: no matter
        made |= {"top_k": made["top_k"] or -1} if "top_k" in made else {}  # vLLM's 0 is all tokens
        if made.get("min_tokens") is not None and wanted["max_tokens"] is not None:
            made["min_tokens"] = min(made["min_tokens"], wanted["max_tokens"])
        for name, value in {**_NEUTRAL, **wanted}.items():
            value = min(value, wanted["max_tokens"]) if name == "min_tokens" and wanted["max_tokens"] else value
            if name in made and record.sampling and value is not None and (made[name] or 0) != (value or 0):
                bad.append(f"engine {record.engine} sampled with {name} {made[name]}, the config says {value}")
    return list(dict.fromkeys(bad))


def answers(ref: Reference) -> Link:
    """Ids as the engine gave them are what training reads, and the text that was scored is theirs."""
    case = ref.case
    bad: list[tuple[int, str]] = []
    for number, row in enumerate(case.rows):
        if why := _wrong_answer(ref, number, row):
            bad.append((number, why))
    if not bad:
        notes = [] if case.tokenizer is not None else ["the capsule has no tokenizer: texts were not compared"]
        if any(row.response_ids is None for row in case.rows):
            notes.append("what engines gave was not recorded of all answers")
        return same("answers", len(case.rows), "; ".join(notes))
    where = [f"{row_name(case.rows[at], at)}: {why}" for at, why in bad]
    causes: list[str] = []
    texts = [row.text for row in case.rows]
    if case.tokenizer is not None:
        decoded = [case.tokenizer.decode(case.tokens(at)[1], skip_special_tokens=True) for at in range(len(texts))]
        special = [case.tokenizer.decode(case.tokens(at)[1], skip_special_tokens=False) for at in range(len(texts))]
        tries = {"texts are those of the rows before": decoded[-1:] + decoded[:-1],
                 "texts are those of the rows after": decoded[1:] + decoded[:1],
                 "special tokens were left in the text": special,
                 "white space around the text was removed": [text.strip() for text in decoded],
                 "the last character was cut": [text[:-1] for text in decoded]}  # fmt: skip
        causes = [cause for cause, tried in tries.items() if all(tried[at] == texts[at] for at, _ in bad)]
    return differs("answers", f"{len(bad)} of {len(texts)} answers differ: {bad[0][1]}", len(texts), where, causes)


def _wrong_answer(ref: Reference, number: int, row: CapsuleRow) -> str:
    case, config = ref.case, ref.case.config
    ids, mask = case.tokens(number)[1], case.mask[number]
    width, real = len(mask), case.batch["attention_mask"][number].bool()
    if row.response_ids is not None and list(row.response_ids) != ids:
        return f"the engine gave {len(row.response_ids)} tokens, training reads {len(ids)}, or other ones"
    if not torch.equal(mask, torch.arange(width) < len(ids)):
        return f"the mask of the loss has {int(mask.sum())} tokens, the answer {len(ids)}"
    placed, wanted = case.batch.get("position_ids"), (real.long().cumsum(-1) - 1).clamp(min=0)
    if placed is not None and not torch.equal(placed[number].long()[real], wanted[real]):
        return f"position ids begin with {placed[number][real][:3].tolist()}, not 0, 1, 2"
    cut, limit = case.batch.get("truncated"), int(config("data.max_response_length"))
    if len(ids) > limit:
        return f"{len(ids)} tokens, data.max_response_length is {limit}"
    if cut is not None and row.finish_reason and bool(cut[number]) != (row.finish_reason == "length"):
        return f"the engine ended it by '{row.finish_reason}', the batch says the opposite"
    if case.tokenizer is None:
        return ""
    end, least = case.tokenizer.eos_token_id, int(config("actor_rollout_ref.rollout.min_tokens", 0))
    if end in ids[least:-1] and not config("actor_rollout_ref.rollout.ignore_eos"):
        return "it goes on after its end token"
    stops = [config(f"actor_rollout_ref.rollout.{key}", None) or [] for key in ("stop", "stop_token_ids")]
    if row.finish_reason == "stop" and not stops[0] and not {*ids[-1:]} & {*case.tokenizer.all_special_ids, *stops[1]}:
        return "the engine ended it by 'stop', and its last token ends nothing"
    if case.tokenizer.decode(ids, skip_special_tokens=True) != row.text:
        return "the text that was scored is not that of its tokens"
    return ""
