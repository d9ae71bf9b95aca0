"""Prompts: there, with text in them, as messages that a chat template takes."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.data.common import data, found, key, listed, places, proof, rows, stops, verdict
from rlcheck.facts.data import DataFacts
from rlcheck.facts.document import Facts


@check("DAT012", "Every row has a prompt with text", needs=("data",), playbook="data-prompt",
       problem="Some rows have no usable prompt")  # fmt: skip
def prompt(facts: Facts) -> Verdict:
    """Looks at the prompt column of every row.

    What it does:
        Reports rows in which the column is missing, null, neither text nor a list, or has nothing but white space. For
        verl also prompts that are plain text, where it needs a list of messages.

    Why it matters:
        A trainer stops at such a row, or takes an empty prompt as a sample like any other: the model is then rewarded
        for an answer to no question.
    """
    section = data(facts)
    asked = section.asked
    if not asked.prompt_key:
        names = ", ".join(
            column.name for file in section.files[:1] for column in file.columns if "." not in column.name
        )
        return skip(f"no column looks like a prompt (there are {names or 'none'}); --prompt-key names one")
    troubles = found(section, "prompt_missing", "prompt_null", "prompt_type", "prompt_empty")
    params = _column(section, "prompt_key", "prompt_missing")
    if troubles:
        # verl trains on an empty prompt like on any other: it does not stop there. No trainer goes on without a prompt.
        only_empty = all(trouble.kind == "prompt_empty" for trouble in troubles)
        make = fail if not only_empty else warn if asked.framework == "verl" else stops(section)
        return verdict(make, section, troubles, f"text or messages in {asked.prompt_key}", params=params)
    num_plain = section.counts.get("plain", 0)
    if num_plain and asked.framework == "verl":
        return fail(
            f"a list of messages in column {asked.prompt_key}: [{{role, content}}]",
            f"plain text in {rows(num_plain)}; verl takes it apart into characters",
            evidence=(evidence("data.counts", num_plain, section.files[0].path),),
            params={"file": section.files[0].path},
        )
    return passed(f"column {asked.prompt_key}")


def _column(section: DataFacts, name: str, kind: str) -> dict[str, str]:
    """What to type where no row has the column that the config names."""
    everywhere = section.trouble(kind).count >= sum(file.num_rows for file in section.files)
    return {"setting": f"{key(section, name)}={section.asked.likely.get(name, 'COLUMN')}"} if everywhere else {}


@check("DAT013", "Chat messages have a role and a content", needs=("data",), playbook="data-prompt",
       problem="A chat message lacks a role or a content")  # fmt: skip
def messages(facts: Facts) -> Verdict:
    """Looks at every message of every prompt.

    What it does:
        Reports messages without role or content (other tools call them from and value), roles other than system, user,
        assistant and tool, user messages without text, and prompts whose last message is the assistant's.

    Why it matters:
        A chat template skips or refuses a message that it does not understand. After an assistant's message there is
        nothing left to answer: the model continues or repeats it, and the reward judges that.
    """
    section = data(facts)
    troubles = found(section, "message_form", "message_role", "message_empty")
    last = found(section, "last_assistant")
    if troubles or (last and section.asked.framework):
        # What rltrain refuses, another framework may render somehow; without a role or a content nothing can.
        is_sure = section.asked.framework == "rltrain" or bool(found(section, "message_form"))
        make = stops(section) if is_sure else warn
        return verdict(make, section, (*troubles, *last), "messages that a chat template takes")
    if last:
        return info(f"{listed(last)}; a prompt for training ends before it", details=places(last), evidence=proof(last))
    return passed("all messages")


@check("DAT014", "Roles follow each other as templates expect", needs=("data",), playbook="data-prompt",
       caused_by=("DAT013",),
       problem="Roles do not follow each other as templates expect")  # fmt: skip
def role_order(facts: Facts) -> Verdict:
    """Looks at the order of roles.

    What it does:
        Expects at most one system message, at the start; then user and assistant by turns; a tool after an assistant.

    Why it matters:
        Some templates (Llama, Mistral, Gemma) raise an error when roles do not alternate, others render a conversation
        that the model has never seen in training.
    """
    section = data(facts)
    troubles = found(section, "role_order")
    if not troubles:
        return passed("system first, then by turns")
    return verdict(warn, section, troubles, "system first, then user and assistant by turns")


@check("DAT015", "Every row names its source", needs=("data",), playbook="data-source",
       problem="Some rows do not name their source")  # fmt: skip
def source(facts: Facts) -> Verdict:
    """Looks at the column that chooses the reward.

    What it does:
        Reports rows in which the column is missing, empty or no text: data_source for verl, for rltrain the one that
        data.reward_fn_key names.

    Why it matters:
        The reward is chosen by it: rltrain refuses the row, verl raises KeyError when the first batch is scored.
    """
    section = data(facts)
    if not section.asked.framework:
        return skip("no config says which column that is")
    troubles = found(section, "source_missing", "source_form", "extra_form")
    if not troubles:
        return passed(f"column {section.asked.source_key}")
    own = section.asked.framework == "verl" and not section.asked.scored_sources
    make = warn if own and not found(section, "source_missing", "extra_form") else fail
    expected = f"a name in column {section.asked.source_key}"
    if {trouble.kind for trouble in troubles} == {"extra_form"}:
        expected = "an object, or nothing, in column extra_info"
    return verdict(make, section, troubles, expected, params=_column(section, "source_key", "source_missing"))


@check("DAT016", "The reward scores every source", needs=("data",), playbook="data-source", caused_by=("DAT015",),
       problem="The reward does not score some sources")  # fmt: skip
def scored(facts: Facts) -> Verdict:
    """Compares the sources in the data with what the configured reward scores.

    What it does:
        For rltrain, the data_sources of reward_model.rules; for verl without a function of your own, the names that its
        default_compute_score knows.

    Why it matters:
        verl raises NotImplementedError at the first row of an unknown source, after the first rollout. rltrain refuses
        to start.
    """
    section = data(facts)
    if not section.asked.reward:
        return skip("no config says how responses are scored")
    troubles = found(section, "source_unscored")
    if not troubles:
        return passed(section.asked.reward)
    is_verl = section.asked.framework == "verl"
    function = f"{key(section, 'function_path')}=FILE.py"
    more = {"params": {"function": function}, "found": f"{listed(troubles)} ({section.asked.reward})"}
    expected = "a source that verl's default_compute_score knows" if is_verl else "a rule for every source"
    return verdict(fail, section, troubles, expected, **more)


@check("DAT017", "Rows have their ground truth", needs=("data",), playbook="data-ground-truth",
       problem="Some rows have no ground truth")  # fmt: skip
def truth(facts: Facts) -> Verdict:
    """Looks for the ground truth where the reward needs one.

    What it does:
        reward_model.ground_truth, for rltrain also the column ground_truth or GSM8K's own form. A null counts as
        missing. Rewards that need none (a format, a function of yours in rltrain) ask for none.

    Why it matters:
        A reward of nothing is an exception in the middle of the first step, or 0 for every response: the model learns
        nothing from these rows without any message.
    """
    section = data(facts)
    troubles = found(section, "truth_missing", "truth_form")
    if not troubles:
        return passed("where they are needed")
    return verdict(stops(section), section, troubles, "a ground truth in every row")


@check("DAT018", "The reward can use the ground truths", needs=("data",), playbook="data-ground-truth",
       caused_by=("DAT017",),
       problem="The reward cannot use some ground truths")  # fmt: skip
def usable(facts: Facts) -> Verdict:
    """Reads every ground truth as the configured reward will.

    What it does:
        By kind of reward: text or a number for text rules, something to compare for digits, a number for GSM8K, an
        expression that math-verify can read (plain numbers at once, of others the first 2000 of each worker), test
        cases for code, `target` for search. A function of yours is not called.

    Why it matters:
        What the reward cannot read raises an error in the run. What it can read but no response can ever equal (`1,000`
        against digits without commas, a number where text is compared) gives 0 forever.
    """
    section = data(facts)
    if not section.asked.reward:
        return skip("no config says how responses are scored")
    broken, never = found(section, "truth_unusable"), found(section, "truth_never")
    expected = f"ground truths that {section.asked.reward} can use"
    if broken:
        return verdict(fail, section, (*broken, *never), expected)
    return verdict(warn, section, never, expected) if never else passed("all of them")


@check("DAT027", "Prompts have a mark for each image, video or audio", needs=("data",), playbook="data-media",
       problem="Marks in prompts do not match the images, videos or audios")  # fmt: skip
def media(facts: Facts) -> Verdict:
    """Notes columns of images, videos and audio, and compares their numbers with the marks in the text.

    What it does:
        Counts rows with something in images, videos or audios. For verl, a prompt has as many `<image>` marks as the
        row has images, likewise for the others.

    Why it matters:
        verl stops with an AssertionError on a row where they differ. Prompt lengths do not count what an image becomes
        in tokens, which is often hundreds.
    """
    section = data(facts)
    troubles = found(section, "media_count")
    if troubles:
        return verdict(fail, section, troubles, "one mark for each image, video or audio")
    counts = {name[6:]: count for name, count in section.counts.items() if name.startswith("media:")}
    if not counts:
        return passed("text alone")
    words = ", ".join(f"{count} rows with {name}" for name, count in counts.items())
    return info(f"{words}; prompt lengths do not count what they become in tokens")
