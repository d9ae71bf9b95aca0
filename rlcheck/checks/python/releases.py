"""Releases that are known to go wrong, from the curated table; METADATA cannot say these things."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.python.common import (
    capability_majors,
    has_nvidia,
    installed,
    is_at,
    named,
    pip_params,
    worst,
)
from rlcheck.checks.python.compat import KnownBad, compat
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution

_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def _hits(facts: Facts, topic: str) -> list[tuple[KnownBad, Distribution]]:
    """The rules of a topic that this environment falls under, gravest first."""
    have, found = installed(facts), list[tuple[KnownBad, Distribution]]()
    for rule in compat().known_bad:
        names = _NCCL if rule.package == "nvidia-nccl" else (rule.package,)
        there = next((have[name] for name in names if name in have), None)
        if rule.topic == topic and there is not None and _holds(facts, rule, there):
            found.append((rule, there))
    return sorted(found, key=lambda hit: ("fail", "warn", "info").index(hit[0].severity))


def _holds(facts: Facts, rule: KnownBad, there: Distribution) -> bool:
    have, platform = installed(facts), facts.platform.value
    if not is_at(there, rule.versions) or not all(is_at(have.get(n), spec) for n, spec in rule.with_.items()):
        return False
    if rule.machine and (platform is None or platform.machine != rule.machine):
        return False
    majors = capability_majors(facts)
    if rule.fine_on_capability and majors == {rule.fine_on_capability}:
        return False
    return has_nvidia(facts) or not rule.needs_gpu


def _verdict(facts: Facts, hits: list[tuple[KnownBad, Distribution]], quiet: str) -> Verdict:
    if not hits:
        return passed(quiet)
    rule, there = hits[0]
    company = "".join(f" with {named(installed(facts)[name])}" for name in rule.with_)
    fix = f"{there.name}>={rule.fix}" if rule.package == "nvidia-nccl" else rule.fix
    return worst(
        [hit[0].severity for hit in hits],
        f"a release of {rule.package} without known trouble: {rule.advice}",
        f"{named(there)}{company}: {rule.symptom}",
        details=tuple(
            f"{named(dist)}: {row.symptom}. {row.advice[0].upper()}{row.advice[1:]} ({row.source})"
            for row, dist in hits
        ),
        evidence=(evidence("python.distributions", named(there), rule.source),),
        params=pip_params(facts, requirement=fix, package=there.name),
    )


@check("ENV032", "No release with known trouble is installed", needs=("python",), playbook="known-bad-release",
       problem="A release with known trouble is installed")  # fmt: skip
def known_bad(facts: Facts) -> Verdict:
    """Compares what is installed with a list of releases and combinations that are known to go wrong.

    What it does:
        Looks up installed versions, and their company where a combination matters, in the curated table. Each entry
        names where it was reported and when that was last checked.

    Why it matters:
        These releases install and import without complaint, and their declared requirements hold; they fail later, or
        compute slightly wrong results, as the rollout probabilities of vLLM up to 0.10.2 on GPUs before Hopper.
    """
    return _verdict(facts, _hits(facts, "general"), "none of the installed releases is known for trouble")


@check(
    "ENV034",
    "Packages work with transformers 5",
    needs=("python",),
    playbook="transformers-mismatch",
    caused_by=("ENV006",),
    problem="A package breaks with transformers 5",
)
def transformers_5(facts: Facts) -> Verdict:
    """Looks for packages that break with transformers 5 although they do not declare it.

    What it does:
        With transformers 5 installed, looks for releases of vLLM, verl and PEFT from before it: their METADATA sets no
        upper limit, and they import names that transformers 5 removed.

    Why it matters:
        transformers 5 removed HybridCache, AutoModelForVision2Seq, tokenizer.all_special_tokens_extended and more, so
        older releases fail with ImportError or AttributeError when they load a model or its tokenizer.
    """
    if not is_at(installed(facts).get("transformers"), ">=5"):
        return skip("transformers 5 is not installed")
    return _verdict(facts, _hits(facts, "transformers-5"), "nothing installed is known to break with transformers 5")


@check(
    "ENV035",
    "protobuf works with what uses it",
    needs=("python", "environ"),
    playbook="protobuf",
    caused_by=("ENV006",),
    problem="protobuf does not work with what uses it",
)
def protobuf(facts: Facts) -> Verdict:
    """Looks at the protobuf runtime: its variable, and packages with generated code that it cannot load.

    What it does:
        Reads PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, and looks for packages whose generated code is older than what
        protobuf 4 and newer accept.

    Why it matters:
        Ray, TensorBoard, OpenTelemetry and vLLM all share one protobuf. Generated code of before 2022 fails with
        "Descriptors cannot be created directly"; the variable that works around it makes every message much slower.
    """
    have = installed(facts).get("protobuf")
    if have is None:
        return skip("protobuf is not installed")
    hits = _hits(facts, "protobuf")
    chosen = need(facts.environ).get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "")
    if hits or not chosen or chosen == "upb":
        return _verdict(facts, hits, f"{named(have)} has its fast implementation")
    params = pip_params(facts, requirement="protobuf", package="protobuf")
    if chosen not in ("python", "cpp") and is_at(have, ">=4"):
        return fail(
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION unset", f"{chosen!r}, which protobuf refuses", params=params
        )
    return warn(
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION unset, so that the fast implementation is used",
        f"{chosen!r} with {named(have)}",
        evidence=(evidence("environ", f"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION={chosen}"),),
        params=params,
    )


@check("ENV036", "tensordict is not a fallback of ARM", needs=("python", "platform"), playbook="tensordict-version")
def tensordict(facts: Facts) -> Verdict:
    """Looks for the old tensordict that pip falls back to on ARM.

    What it does:
        On aarch64, compares the installed tensordict with the releases that have no ARM wheel: 0.2.0 to 0.7.2.

    Why it matters:
        Asked for one of these, pip silently installs 0.1.2 on ARM, and verl stops with `TensorDict does not support
        membership checks with the in keyword`.
    """
    if need(facts.platform).machine not in ("aarch64", "arm64"):
        return skip("this is not an ARM machine")
    have, gap = installed(facts).get("tensordict"), compat().tensordict_aarch64
    if have is None:
        return skip("tensordict is not installed")
    if is_at(have, f"<{gap.first_missing}"):
        return fail(
            "tensordict 0.8 or newer on ARM",
            f"{named(have)}: pip falls back to it, since {gap.first_missing} to {gap.last_missing} have no ARM wheel",
            evidence=(evidence("python.distributions", named(have), "METADATA"),),
            params=pip_params(facts, requirement="tensordict>=0.8"),
        )
    return passed(f"{named(have)} is no fallback")
