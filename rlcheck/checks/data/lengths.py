"""Prompt lengths and the chat template."""

from __future__ import annotations

from typing import Any

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.data.common import data, first_file, found, key, places, proof, rows, verdict
from rlcheck.facts.data import DataFacts
from rlcheck.facts.document import Facts


@check("DAT019", "Prompts fit max_prompt_length", needs=("data",), playbook="data-length",
       problem="Some prompts are longer than max_prompt_length")  # fmt: skip
def fits(facts: Facts) -> Verdict:
    """Counts the prompts that are too long, in tokens with the model's tokenizer and chat template.

    What it does:
        The count is exact. A byte-level tokenizer makes at most one token of each byte, so a prompt whose text, with
        what the template adds, has no more bytes than the limit is not tokenized; every other one is.

    Why it matters:
        With truncation=error rltrain stops at such a row. verl cuts its start away (from 0.8.0 on) or keeps it longer
        than its tensors are made for (0.7.1). What is filtered out is training data that you do not have.
    """
    section, lengths = data(facts), data(facts).lengths
    if not section.asked.framework:
        return skip("no config says how long a prompt may be")
    if not section.asked.max_prompt_length:
        return unknown("the config does not say how long a prompt may be")
    if lengths.problem:
        return unknown(f"lengths are not known in tokens: {lengths.problem}")
    if lengths.unit != "tokens":
        return unknown("lengths are not known in tokens: the model's tokenizer is not here; --tokenizer names one")
    troubles = found(section, "too_long")
    limit = f"{key(section, 'max_prompt_length')}={lengths.limit}"
    if not troubles:
        left_out = section.counts.get("unmeasured", 0)
        but = f"; {rows(left_out)} with parts that are no plain text were not measured" if left_out else ""
        return passed(f"none has more than {lengths.limit} tokens{but}")
    more: dict[str, Any] = {
        "params": {"setting": f"{key(section, 'max_prompt_length')}={lengths.longest}"},
        "found": f"{rows(troubles[0].count)} too long, the longest of {lengths.longest} tokens",
    }
    return _too_long(section, troubles[0].count, limit, more)


def _too_long(section: DataFacts, count: int, limit: str, more: dict[str, Any]) -> Verdict:
    asked = section.asked
    troubles = found(section, "too_long")
    usable = sum(file.num_rows for file in section.files)
    if asked.filter_overlong_prompts and count < usable:
        share = f"{rows(count)} of {usable} are longer than {limit} and will be left out"
        return info(share, details=places(troubles), evidence=proof(troubles))
    if asked.filter_overlong_prompts:
        return verdict(fail, section, troubles, f"prompts within {limit}; all others are filtered out", **more)
    if asked.framework == "rltrain" and asked.truncation == "error":
        return verdict(fail, section, troubles, f"prompts within {limit}, since data.truncation=error", **more)
    return verdict(warn, section, troubles, f"prompts within {limit}; longer ones lose a part of their text", **more)


@check("DAT020", "The chat template takes the prompts", needs=("data",), playbook="data-template",
       caused_by=("DAT013", "DAT014"),
       problem="The chat template does not take some prompts")  # fmt: skip
def template(facts: Facts) -> Verdict:
    """Renders prompts with the tokenizer's chat template.

    What it does:
        Every prompt that is tokenized is rendered (see DAT019: a seeded sample and all that may be too long, and some
        of each order of roles). Reports what the template refuses, and messages where there is no template.

    Why it matters:
        A template that raises ends the run at that row; verl leaves such rows out as if they were too long. A base
        model without a template cannot take messages at all.
    """
    section, lengths = data(facts), data(facts).lengths
    if not section.asked.max_prompt_length:
        return unknown("the config does not say how long a prompt may be")
    if lengths.problem:
        return unknown(f"the template was not tried: {lengths.problem}")
    if lengths.unit != "tokens":
        return skip("no tokenizer was named")
    troubles = found(section, "template")
    params = {"setting": f"{key(section, 'custom_chat_template')}=TEXT"}
    if troubles:
        return verdict(fail, section, troubles, "prompts that the chat template takes", params=params)
    num_without = section.counts.get("untemplated", 0)
    if num_without:
        return fail(
            "a chat template for prompts that are messages",
            f"none in {lengths.tokenizer}",
            evidence=(evidence("data.lengths", "no chat template", lengths.tokenizer),),
            params={"file": first_file(section), **params},
        )
    return passed(f"{lengths.num_measured} prompts rendered")


@check("DAT021", "The chat template leaves earlier turns alone", needs=("data",), playbook="data-template",
       caused_by=("DAT020",),
       problem="The chat template rewrites earlier turns")  # fmt: skip
def appends(facts: Facts) -> Verdict:
    """Renders a conversation turn by turn.

    What it does:
        With a plain answer and with one that thinks in <think> tags: what was rendered when the answer was generated
        must stay as it was when the answer is stored and when the next turn comes. Judged where the config or the data
        has several turns.

    Why it matters:
        Templates such as Qwen3's drop earlier thinking. Then training sees other tokens than the ones that the model
        generated, and their log-probabilities belong to nothing that happened.
    """
    section, lengths = data(facts), data(facts).lengths
    if lengths.unit != "tokens" or not lengths.has_template:
        return skip("no chat template was tried")
    broken = {name: why for name, why in lengths.append.items() if why}
    if not section.asked.multi_turn and not section.counts.get("multi_turn"):
        return skip("neither the config nor the data has several turns")
    if not broken:
        return passed("earlier turns stay as they were")
    return warn(
        "earlier turns that stay as they were rendered",
        f"a template that rewrites them ({', '.join(f'{name} answers' for name in broken)})",
        details=tuple(f"{name} answer: {why}" for name, why in broken.items()),
        evidence=(evidence("data.lengths", next(iter(broken.values())), lengths.tokenizer),),
        params={"file": first_file(section), "setting": f"{key(section, 'custom_chat_template')}=TEXT"},
    )


@check("DAT026", "Data sources are in balance", needs=("data",), playbook="data-balance",
       problem="Some data sources are rare or not validated")  # fmt: skip
def balance(facts: Facts) -> Verdict:
    """Counts rows by source.

    What it does:
        Notes sources of less than one row in a hundred, and sources of the training data that validation lacks.

    Why it matters:
        A source with few rows is seen in few batches; its reward says little. What validation does not have is not
        measured.
    """
    section = data(facts)
    train, val = section.sources.get("train", {}), section.sources.get("val", {})
    total = sum(train.values())
    if not total:
        return skip("no column of sources")
    small = [f"{name}: {rows(count)} of {total}" for name, count in train.items() if count * 100 < total]
    lacking = [f"{name}: not in the validation data" for name in train if val and name not in val]
    if not small and not lacking:
        return passed(f"{len(train)} source{'' if len(train) == 1 else 's'}")
    words = [f"{len(small)} of less than one row in a hundred"] if small else []
    words += [f"{len(lacking)} that validation lacks"] if lacking else []
    return info(f"{len(train)} sources, {' and '.join(words)}", details=tuple((*small, *lacking)[:20]))
