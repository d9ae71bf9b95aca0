"""ROL003-ROL006: what an engine's answers must hold to, wherever it runs."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Case

_CAUSES = ("ROL001", "ROL002", "ROL010", "ROL011", "ROL012")


@check("ROL003", "Log-probabilities come back, one for each token", needs=("rollout.log_probs",),
       playbook="rollout-log-probs", caused_by=_CAUSES,
       problem="Log-probabilities are missing or wrong")  # fmt: skip
def log_probs_are_whole(facts: Facts) -> Verdict:
    """Every sampled token has a finite log-probability of at most 0.

    What it does:
        Counts tokens and log-probabilities over all answers, and looks for values that are no numbers or above 0.

    Why it matters:
        Importance weights divide by them. One that is missing shifts all after it by a token; one that is NaN turns the
        loss, and with it all weights, into NaN.
    """
    found = need(need(facts.rollout).log_probs)
    if not found.num_completions:
        return unknown("nothing was generated")
    proof = (evidence("rollout.log_probs", f"{found.num_log_probs} for {found.num_tokens} tokens", "the answers"),)
    details = (found.worst,) if found.worst else ()
    if found.num_log_probs != found.num_tokens:
        return fail(f"{found.num_tokens} log-probabilities, one a token", str(found.num_log_probs),
                    details=details, evidence=proof)  # fmt: skip
    if found.num_not_finite or found.num_positive:
        wrong = f"{found.num_not_finite} that are no numbers, {found.num_positive} above 0"
        return fail("log-probabilities of at most 0", wrong, details=details, evidence=proof)
    return passed(f"{found.num_log_probs} for {found.num_tokens} tokens, mean {found.mean:.2f}, all finite")


@check("ROL004", "Answers end where they should", needs=("rollout.stops",), playbook="run-end-token",
       caused_by=_CAUSES,
       problem="Answers do not end where they should")  # fmt: skip
def answers_end(facts: Facts) -> Verdict:
    """The end of sequence, stop tokens and stop strings end an answer, and `ignore_eos` goes on.

    What it does:
        Generates sampled and greedy answers, and holds each against itself: where it ended, and what it says why.

    Why it matters:
        Answers that run on past their end are scored and trained on as if the policy had meant it; the length of
        responses then grows to the limit, whatever the reward.
    """
    return _cases(need(need(facts.rollout).stops), "rollout.stops", "answers that end as they should")


@check("ROL005", "Answers keep the limits of length", needs=("rollout.lengths",), playbook="run-end-token",
       caused_by=_CAUSES,
       problem="Answers do not keep a limit of length")  # fmt: skip
def lengths_are_kept(facts: Facts) -> Verdict:
    """A prompt without room for an answer is refused, and no answer is longer than was asked.

    What it does:
        Sends a prompt of max_model_len tokens, one that leaves room for three tokens, and asks for a short answer.

    Why it matters:
        A server that cuts prompts without a word trains on other prompts than the data holds. Answers over the limit
        break the shapes of a batch.
    """
    return _cases(need(need(facts.rollout).lengths), "rollout.lengths", "lengths within their limits")


def _cases(cases: tuple[Case, ...], fact: str, expected: str) -> Verdict:
    wrong = [case for case in cases if case.judged and not case.ok]
    details = tuple(f"{case.name}: {case.found}" for case in cases if case.found)
    if wrong:
        return fail(
            expected,
            f"{wrong[0].name}: {wrong[0].found}",
            details=tuple(f"{case.name}: expected {case.expected}, found {case.found}" for case in wrong),
            evidence=(evidence(fact, wrong[0].found, "the engine's answer"),),
            params={},
        )
    tried = [case.name for case in cases if case.judged]
    if not tried:
        return info("nothing came that could be judged", details=details)
    return passed(", ".join(tried), details=details)


@check("ROL006", "The chat template renders a message", needs=("rollout.template",), playbook="run-chat-template",
       caused_by=("ROL001", "ROL010", "ROL011", "ROL012"),
       problem="The chat template is missing or refuses a message")  # fmt: skip
def template_renders(facts: Facts) -> Verdict:
    """There is a chat template, and it takes a plain user message.

    What it does:
        Renders one user message with the template that the engine or the trainer would use, and shows the result.

    Why it matters:
        Without a template, prompts that are lists of messages cannot be used at all; with another one than the model
        was trained with, answers are worse and do not end.
    """
    found = need(need(facts.rollout).template)
    if found.error:
        return fail("a rendered message", found.error,
                    evidence=(evidence("rollout.template.error", found.error, found.source),))  # fmt: skip
    if not found.present:
        return warn("a chat template", "none: only prompts that are plain strings can be used",
                    evidence=(evidence("rollout.template.present", "false", "the tokenizer"),))  # fmt: skip
    shown = f": {' '.join(found.rendered.split())[:120]}" if found.rendered else ""
    return passed(f"of {found.source}, {found.num_tokens} tokens{shown}")
