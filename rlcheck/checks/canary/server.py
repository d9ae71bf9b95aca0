"""CAN001-CAN004: a live server computes with the weights, the cache and the tokenizer of a saved checkpoint."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, fail, passed, skip, unknown
from rlcheck.facts.base import need
from rlcheck.facts.canary import CanaryFacts, Distance
from rlcheck.facts.document import Facts

COMPARED, WEIGHTS = "CAN001", "CAN002"


def _numbers(distance: Distance) -> str:
    return f"{distance.mean:.2g} in the mean, at most {distance.largest:.2g}"


def _bound(canary: CanaryFacts) -> str:
    return f"{canary.bound_mean:.2g} in the mean and at most {canary.bound_largest:.2g} ({canary.dtype})"


def _proof(canary: CanaryFacts, name: str, distance: Distance) -> tuple[Evidence, ...]:
    said = f"{_numbers(distance)}, over {distance.num_tokens} tokens"
    return (evidence(f"canary.{name}", said, f"{canary.url} against {canary.checkpoint}"),)


@check("CAN001", "Server and checkpoint can be compared", needs=("canary",), playbook="canary-not-compared",
       problem="Server and checkpoint could not be compared")  # fmt: skip
def compared(facts: Facts) -> Verdict:
    """Loads the checkpoint on the CPU and computes the tokens that the server was asked for.

    What it does:
        One forward pass in float32 for each prompt, one in the server's dtype, one in the next finer dtype.

    Why it matters:
        No trainer's own word is taken for what its engine has.
    """
    canary = need(facts.canary)
    if canary.failure is not None:
        return fail("a forward pass of the checkpoint", canary.failure.root or canary.failure.line,
                    details=canary.failure.tail,
                    evidence=(evidence("canary.failure", canary.failure.line, canary.checkpoint),))  # fmt: skip
    count = need(canary.direct).num_tokens
    return passed(f"{count} tokens; rounding explains {_bound(canary)}")


@check("CAN002", "The server computes with the checkpoint's weights", needs=("canary.direct",),
       playbook="drift-weights-not-taken", caused_by=(COMPARED,),
       problem="The server computes with other weights than the checkpoint's")  # fmt: skip
def has_the_weights(facts: Facts) -> Verdict:
    """Log-probabilities of fixed prompts are those of the checkpoint, as far as the server's dtype rounds.

    What it does:
        Compares token by token; where they differ, tries the earlier checkpoints (--earlier), the checkpoint without
        its adapter (--adapter), and each tensor of an earlier checkpoint in the place of the checkpoint's.

    Why it matters:
        A policy that learns from what older weights did moves away from its samples.
    """
    canary = need(facts.canary)
    found = need(canary.direct)
    if not canary.bound_largest:
        return unknown("what rounding explains was not measured")
    proof = _proof(canary, "direct", found)
    if canary.within(found):
        return passed(f"apart by {_numbers(found)}; rounding explains {_bound(canary)}", evidence=proof)
    details = tuple(f"against {other.name}: {_numbers(other)}" for other in canary.others)
    same = next((other for other in canary.others if canary.within(other)), None)
    headline, what = "", "weights that are neither those of the checkpoint nor any others that were given"
    if canary.stale_tensors:
        what = f"{', '.join(canary.stale_tensors)} of {canary.stale_from}, and all others of the checkpoint"
        headline = "Some tensors of the server are those of an earlier checkpoint"
    elif same is not None and canary.adapter and same.name == "the checkpoint without its adapter":
        what, headline = "the model without its adapter", "The server answers without the LoRA adapter"
    elif same is not None:
        what, headline = f"the weights of {same.name}", "The server has the weights of an earlier checkpoint"
    return fail(f"log-probabilities within {_bound(canary)}", f"{what}: apart by {_numbers(found)}",
                headline=headline, details=details, evidence=proof)  # fmt: skip


@check("CAN003", "A prefix that was cached is one of these weights", needs=("canary.cached",),
       playbook="canary-stale-cache", caused_by=(COMPARED, WEIGHTS),
       problem="The server reads a prefix cache of other weights")  # fmt: skip
def cache_is_fresh(facts: Facts) -> Verdict:
    """New tokens behind a long prefix, which every call of the command asks for, are those of the checkpoint.

    What it does:
        Asks twice, without log-probabilities of the prompt, so that the engine reads its cache; an entry that is left
        from a call before the last change of weights shows here.

    Why it matters:
        Keys and values of old weights below new ones are a policy that is none: no metric names it.
    """
    canary = need(facts.canary)
    found = need(canary.cached)
    if not canary.bound_largest:
        return unknown("what rounding explains was not measured")
    proof = _proof(canary, "cached", found)
    if (direct := canary.direct.value) is not None and not canary.within(direct):
        return skip("the weights differ already: CAN002")
    if canary.within(found):
        return passed(f"{canary.prefix_tokens} tokens, asked twice: apart by {_numbers(found)}", evidence=proof)
    return fail(f"log-probabilities within {_bound(canary)}",
                f"apart by {_numbers(found)}, behind {canary.prefix_tokens} tokens", evidence=proof)  # fmt: skip


@check("CAN004", "The server splits texts as the checkpoint's tokenizer does", needs=("canary.splits",),
       playbook="canary-other-tokenizer", caused_by=(COMPARED,),
       problem="The server has another tokenizer than the checkpoint")  # fmt: skip
def same_tokenizer(facts: Facts) -> Verdict:
    """Fixed texts become the same token ids.

    What it does:
        Asks the server's /tokenize for texts with numbers, spaces, code, accents, Chinese and an emoji.

    Why it matters:
        Weights are right and answers are wrong: the model reads other words than were sent.
    """
    canary = need(facts.canary)
    splits = need(canary.splits)
    if not splits:
        return passed(f"{canary.num_texts} texts")
    first = splits[0]
    details = tuple(
        f"{one.text!r}: server {list(one.server[:12])}, checkpoint {list(one.checkpoint[:12])}" for one in splits
    )
    return fail("the same token ids", f"others for {len(splits)} of {canary.num_texts} texts, {first.text!r} first",
                details=details, evidence=(evidence("canary.splits", len(splits), canary.url),))  # fmt: skip
