"""LoRA: targets that exist, ranks that the engine takes, and a scale and rate that let it learn."""

from __future__ import annotations

import re
from difflib import get_close_matches

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import limit, run_limits
from rlcheck.checks.config.roles import Role, roles
from rlcheck.checks.config.say import Case, conclude, config_of, for_verl_alone, unclear
from rlcheck.facts.base import value_or, why_missing
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import who
from rlcheck.measure.config.engines import traits_of

_ALL = "all-linear"
_PLAIN_NAME = re.compile(r"\w+")
# Linear layers that are no children of another module: PEFT matches a single text against whole names.
_TOP = ("lm_head", "score")


def _with_lora(run: ConfigFacts) -> list[Role]:
    """Roles with an adapter of PEFT's; other backends name layers otherwise."""
    return [
        role for role in roles(run)
        if role.spec.trained and role.spec.model.lora_rank > 0 and role.spec.sharding.strategy.startswith("fsdp")
    ]  # fmt: skip


@check(
    "CFG044", "LoRA's targets are in the model", needs=("config",), playbook="run-lora-targets", caused_by=("CFG030",)
)
def targets(facts: Facts) -> Verdict:
    """Compares target_modules with the names of the model's layers, as its weight files list them.

    What it does:
        A list holds last parts of names; one text is a regular expression that must match a whole name. Fails when no
        layer matches, warns when some names of the list match nothing.

    Why it matters:
        Names differ between families (q_proj, query_key_value, c_attn). PEFT stops when nothing matches, and says
        nothing when only some of the names do: those layers are then not trained.
    """
    run = config_of(facts)
    chosen = _with_lora(run)
    if not chosen:
        return skip("no LoRA")
    cases, blind, seen = list[Case](), None, 0
    for role in chosen:
        model = role.model.value
        modules = value_or(model.modules, ()) if model is not None else ()
        cases += _plain_text(role) or (_listed(role, modules) if modules else [])
        seen += bool(modules) or role.spec.model.target_modules == _ALL
        blind = blind or (why_missing(role.model) if model is None else why_missing(model.modules))
    if not cases and not seen:
        return unclear(blind) or skip("the names of the model's layers are not known")
    return conclude(run, cases, "all targets are layers of the model")


def _plain_text(role: Role) -> list[Case]:
    wanted, field = role.spec.model.target_modules, f"{role.name}.model.target_modules"
    if not isinstance(wanted, str) or wanted == _ALL or wanted in _TOP or not _PLAIN_NAME.fullmatch(wanted):
        return []
    return [Case("fail", field, f"a list such as [{wanted}]",
                 f"the text {wanted}: as a pattern it matches no whole name", to=[wanted])]  # fmt: skip


def _listed(role: Role, modules: tuple[str, ...]) -> list[Case]:
    wanted, field = role.spec.model.target_modules, f"{role.name}.model.target_modules"
    if isinstance(wanted, str) or not wanted:
        return []
    # A dotted name is matched against the end of whole names, of which only the last parts are known.
    last = {name: name.rpartition(".")[2] for name in wanted}
    absent = [name for name in wanted if last[name] not in modules and not last[name].isdecimal()]
    if not absent:
        return []
    near = {name: get_close_matches(name, modules, n=1) for name in absent}
    hints = ", ".join(f"{name}{f' (near: {found[0]})' if found else ''}" for name, found in near.items())
    there = ", ".join(sorted(modules)[:12])
    none = len(absent) == len(wanted)
    found = f"{hints}: no layer of that name" + (", nor of any other in the list" if none and len(wanted) > 1 else "")
    return [Case("fail" if none else "warn", field, f"some of {there}", found, to=_ALL)]


@check("CFG045", "The engine takes LoRA's rank", needs=("config",), playbook="run-lora-rank",
       problem="The engine does not take LoRA's rank")  # fmt: skip
def rank(facts: Facts) -> Verdict:
    """Compares the rank with those that vLLM has kernels for.

    What it does:
        vLLM's max_lora_rank is one of a short list, up to 512; verl takes the next larger one.

    Why it matters:
        A higher rank is refused at start. A rank between two of them costs the memory and time of the larger.
    """
    for_verl_alone(run := config_of(facts))
    chosen = [role for role in _with_lora(run) if role.name == "actor"]
    if not chosen or not traits_of(run.spec.rollout.name).has_lora_ranks:
        return skip("no LoRA in vLLM")
    wanted, ranks = chosen[0].spec.model.lora_rank, run_limits().lora_ranks
    field = "actor.model.lora_rank"
    if wanted in ranks or _merged(run):
        return passed(f"rank {wanted}")
    if wanted > ranks[-1]:
        case = Case("fail", field, f"at most {ranks[-1]}", f"{wanted}, which {who(run)} refuses", to=ranks[-1])
        return conclude(run, [case], "")
    above = next(rank for rank in ranks if rank > wanted)
    return conclude(run, [Case("info", field, f"one of {', '.join(map(str, ranks))}",
                               f"rank {wanted} is served as {above}", to=above)], "")  # fmt: skip


def _merged(run: ConfigFacts) -> bool:
    return bool(run.values.get("actor_rollout_ref.model.lora.merge"))


@check("CFG046", "LoRA's scale is usual", needs=("config",), playbook="run-lora-rank",
       problem="LoRA's scale is unusual")  # fmt: skip
def scale(facts: Facts) -> Verdict:
    """Looks at lora_alpha beside the rank.

    What it does:
        The adapter's output is multiplied by lora_alpha / lora_rank. Fails at 0, mentions what is far from 1.

    Why it matters:
        At 0 the adapter has no effect and gets no gradient: the run goes on and trains nothing.
    """
    run = config_of(facts)
    chosen = _with_lora(run)
    if not chosen:
        return skip("no LoRA")
    cases = list[Case]()
    for role in chosen:
        model, field = role.spec.model, f"{role.name}.model.lora_alpha"
        ratio = model.lora_alpha / model.lora_rank
        if ratio == 0:
            cases += [Case("fail", field, "more than 0", "lora_alpha 0: the adapter has no effect", to=model.lora_rank)]
        elif not limit("min_lora_scale") <= ratio <= limit("max_lora_scale"):
            found = f"lora_alpha {model.lora_alpha:g} at rank {model.lora_rank}, a scale of {ratio:g}"
            cases += [Case("info", field, "a scale between 1/2 and 2", found, to=model.lora_rank)]
    return conclude(run, cases, "as usual")


@check("CFG047", "LoRA learns at a rate of its own", needs=("config",), playbook="run-learning-rates",
       problem="LoRA learns at the rate of full training")  # fmt: skip
def lora_rate(facts: Facts) -> Verdict:
    """Notices a learning rate of full tuning beside LoRA.

    What it does:
        Compares the actor's learning rate with what full tuning uses; LoRA takes ten times that and more.

    Why it matters:
        The most common way for LoRA to look useless is the rate that was right for full tuning.
    """
    run = config_of(facts)
    if not any(role.name == "actor" for role in _with_lora(run)):
        return skip("no LoRA")
    rate = run.spec.actor.optim.lr
    if not 0 < rate <= limit("min_lora_lr"):
        return passed(f"{rate:g}")
    case = Case("info", "actor.optim.lr", "1e-5 and more with LoRA", f"learning rate {rate:g} with LoRA", to=1e-5)
    return conclude(run, [case], "")
