"""Whether the prediction can be trusted, and whether one owner holds what it need not."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import Phase
from rlcheck.measure.config import fields
from rlcheck.measure.memory.summary import by_kind, compared, gib

_OFF = 0.10
"""Difference from a measurement above which a prediction is called wrong: what it is held to at worst."""
_DOMINATES = 0.4
"""Share of a phase from which on its logits are called its cause."""
_OF_ROLE = {"ref log-probs": "ref", "log-probs": "actor", "actor update": "actor"}


@check("MEM008", "Measured memory is as predicted", needs=("memory",), playbook="run-does-not-fit",
       problem="Measured memory is not as predicted")  # fmt: skip
def prediction_holds(facts: Facts) -> Verdict:
    """
    What it does:
        Compares each phase that `--measure` ran with its prediction.

    Why it matters:
        A prediction that is more than 10 % off for this model or these versions must not be planned with.
    """
    memory = need(facts.memory)
    pairs = compared(memory)
    if not pairs:
        return skip("nothing was measured (--measure)")
    off = [pair for pair in pairs if abs(pair[2]) > _OFF]
    worst = max(pairs, key=lambda pair: abs(pair[2]))
    if not off:
        return passed(f"{len(pairs)} phases, at most {abs(worst[2]):.1%} off ({worst[0].name})")
    details = tuple(f"{one.name}: predicted {gib(phase.needed_bytes)}, measured {gib(one.needed_bytes)} ({error:+.1%})"
                    for phase, one, error in off)  # fmt: skip
    return warn(
        f"predictions within {_OFF:.0%} of what was measured",
        f"{len(off)} of {len(pairs)} phases farther off, {worst[0].name} by {worst[2]:+.1%}",
        details=details,
        evidence=(evidence("memory.measured", worst[1].needed_bytes, "measured"),),
    )


@check("MEM009", "The model's architecture is known", needs=("memory",), playbook="run-does-not-fit",
       problem="The model's architecture is not known")  # fmt: skip
def architecture_is_known(facts: Facts) -> Verdict:
    """
    What it does:
        Says when the model is of an architecture whose layers the memory model does not know.

    Why it matters:
        Its memory is estimated from the sizes that its config.json declares, and may be off by more than usual.
    """
    memory = need(facts.memory)
    if memory.exact:
        return passed(memory.architecture or "known")
    name = memory.architecture or "without a name"
    return info(f"the architecture {name} is not known: sizes are estimated from its config.json",
                evidence=(evidence("memory.architecture", name),))  # fmt: skip


@check("MEM010", "Logits do not take most of the memory", needs=("memory", "config"), playbook="logits-out-of-memory",
       problem="Most of the memory is logits")  # fmt: skip
def logits_are_chunked(facts: Facts) -> Verdict:
    """
    What it does:
        Looks for phases in which the distribution over the vocabulary, tokens x vocabulary in float32 with its
        temporaries, holds more than 40 % of the memory although it could be computed in chunks.

    Why it matters:
        With a vocabulary of 150,000, 16,384 tokens are 9 GiB, several times over; chunks need a fraction of that and
        cost little time.
    """
    memory, run = need(facts.memory), need(facts.config)
    heavy = [(phase, role) for phase in memory.phases if (role := _unchunked(run, phase)) is not None]
    heavy = [(phase, role) for phase, role in heavy if _logits(phase) > _DOMINATES * max(phase.num_bytes, 1)]
    if not heavy:
        return passed("no phase is mostly logits")
    phase, role = max(heavy, key=lambda pair: _logits(pair[0]))
    change = (
        fields.override(run, f"{role.name}.chunked_logits", True)
        if fields.key_of(run, f"{role.name}.chunked_logits")
        else ""
    )
    said = f"{gib(_logits(phase))} of {gib(phase.num_bytes)} in {phase.name} are logits"
    more = {
        "details": tuple(f"{one.name}: {gib(_logits(one))} of {gib(one.num_bytes)}" for one, _ in heavy),
        "evidence": (evidence("memory.phases", _logits(phase), "prediction"),),
        "params": {"overrides": change} if change else {},
    }
    if phase.needed_bytes > memory.usable_bytes:
        return warn(f"logits below {_DOMINATES:.0%} of {phase.name}", said, **more)
    return info(f"{said}; {change} would need a fraction of that" if change else said, **more)


def _logits(phase: Phase) -> int:
    return by_kind(phase).get("logits", 0)


def _unchunked(run: ConfigFacts, phase: Phase) -> RoleSpec | None:
    """The role whose log-probabilities the phase computes, if it makes the logits of all tokens at once."""
    name = _OF_ROLE.get(phase.name, "")
    role = run.spec.actor if name == "actor" else run.spec.ref if name == "ref" else None
    if role is None or role.chunked_logits or role.model.fused_kernels:
        return None
    return role


@check("MEM011", "Every phase ran when it was measured", needs=("memory",), playbook="run-does-not-fit",
       problem="A phase failed while it was measured")  # fmt: skip
def phases_ran(facts: Facts) -> Verdict:
    """
    What it does:
        Says which phase ended with an error, out of memory for one, when `--measure` ran it.

    Why it matters:
        The real run would end in the same place.
    """
    memory = need(facts.memory)
    if not memory.measured:
        return skip("nothing was measured (--measure)")
    broken = [one for one in memory.measured if one.error]
    if not broken:
        return passed(f"{len(memory.measured)} phases ran")
    return fail(
        "every phase to run",
        f"{broken[0].name} ended: {broken[0].error}",
        details=tuple(f"{one.name}: {one.error}" for one in broken[1:]),
        evidence=(evidence("memory.measured", broken[0].error, "measured"),),
    )
