"""The models of a run: there, language models, and loadable as the config says."""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import native_models, run_limits
from rlcheck.checks.config.roles import Role, is_local, is_remote, known_models, roles, tokenizer_of, why_unread
from rlcheck.checks.config.say import Case, conclude, config_of, name_of, unclear
from rlcheck.facts.base import Missing, MissingKind
from rlcheck.facts.config import ConfigFacts, ModelFacts
from rlcheck.facts.document import Facts

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@check("CFG030", "Models are where the config says", needs=("config",), playbook="run-model-missing")
def model_found(facts: Facts) -> Verdict:
    """Looks for the directory of each model, and for config.json in it.

    What it does:
        A path must be a directory with a config.json. A name on the hub is looked for in this machine's cache; it may
        be absent there unless the process is told to be offline.

    Why it matters:
        Ray, the placement groups and often the data are set up before the first worker opens the model, so a misspelt
        path is found after minutes, with the GPUs held.
    """
    run = config_of(facts)
    if run.spec.actor.model.path is None and not run.models:
        return passed("the config makes its own model")
    looked, cases, blind = 0, list[Case](), None
    for role in roles(run):
        path, missing = role.spec.model.path, why_unread(role)
        if missing is None:
            looked += 1
        elif path is not None and is_remote(path):
            blind = Missing(kind=MissingKind.NOT_COLLECTED, reason=f"{path} is on another file system")
        elif path is None or missing.kind is not MissingKind.ABSENT:
            blind = blind or missing
        else:
            cases += [_absent(facts, run, role, path, missing.reason)]
    if not cases and not looked and unclear(blind) is None:
        return skip("the config names no model")
    return _or_unclear(run, cases, blind, f"{looked} found")


def _or_unclear(run: ConfigFacts, cases: list[Case], missing: Missing | None, otherwise: str) -> Verdict:
    """The verdict of `cases`; without any, *unknown* when one of the models could not be looked at."""
    return (None if cases else unclear(missing)) or conclude(run, cases, otherwise)


def _absent(facts: Facts, run: ConfigFacts, role: Role, path: str, reason: str) -> Case:
    field = f"{role.name}.model.path"
    key = name_of(run, field)
    resolved = next((p.resolved for p in run.paths if p.key == key), "")
    shown = path if resolved in ("", path) else f"{path} ({resolved})"
    if is_local(path):
        # The reader's reason often begins with the path, and ends with what else could be given to it.
        why = reason.partition(";")[0]
        told = f"{shown}, which {why[len(path) :].strip()}" if why.startswith(path) else f"{shown}: {why}"
        return Case("fail", field, "the directory of a model", told)
    environ = facts.environ.value or {}
    offline = next((name for name in _OFFLINE if environ.get(name, "").lower() in ("1", "true", "yes", "on")), "")
    if offline:
        return Case("fail", field, "a model in the cache", f"{path}, which is not there, and {offline} is set")
    return Case("info", field, "a model in the cache", f"{path} is not in this machine's cache: it will be fetched")


@check(
    "CFG031",
    "The actor is a causal language model",
    needs=("config",),
    playbook="auto-class-refused",
    caused_by=("CFG030",),
    problem="The actor is no causal language model",
)
def model_kind(facts: Facts) -> Verdict:
    """Reads `architectures` and `is_encoder_decoder` of the actor's config.json.

    What it does:
        The actor must be a decoder with a language-modelling head, and config.json must name one architecture.

    Why it matters:
        A classifier or a bare encoder loads as a policy with a head of random weights and generates noise; verl asserts
        that exactly one architecture is named; encoder-decoder models have no place in these trainers.
    """
    run = config_of(facts)
    found, missing = known_models(run)
    cases = [case for role, model in found if role.name == "actor" for case in _kinds(run, model)]
    if not any(role.name == "actor" for role, _ in found):
        return unclear(missing) or passed("no model to judge")
    return conclude(run, cases, "a causal language model")


def _kinds(run: ConfigFacts, model: ModelFacts) -> list[Case]:
    field, named = "actor.model.path", model.sizes.get("architectures")
    if model.sizes.get("is_encoder_decoder") is True:
        return [Case("fail", field, "a decoder-only model", f"an encoder-decoder, {model.sizes.get('model_type')}")]
    names: list[str] = [str(name) for name in named] if isinstance(named, list | tuple) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if len(names) != 1:
        if run.framework != "verl" or not model.source.endswith(".json"):
            return []
        return [Case("fail", field, "one architecture in config.json", f"{len(names)}, which verl refuses")]
    name, own = names[0], "AutoModelForCausalLM" in model.auto_map
    headless = name.endswith("Model") and "LMHead" not in name
    if not own and (headless or "Reward" in name or "Classification" in name):
        return [Case("warn", field, "a model with a language-modelling head", f"{name}: its head would be random")]
    return []


@check(
    "CFG032", "Models with code of their own may run it", needs=("config",), playbook="run-remote-code",
    caused_by=("CFG030",),
    problem="A model has code of its own that it may not run",
)  # fmt: skip
def remote_code(facts: Facts) -> Verdict:
    """Reads `auto_map` of config.json and of the tokenizer's files.

    What it does:
        A model whose type transformers does not know, and whose config.json names code in its own directory, loads only
        with trust_remote_code. Types that transformers has built in load without it.

    Why it matters:
        Without it loading stops with "requires you to execute the configuration file", or with `No module named
        modeling_…` in one of the workers.
    """
    run = config_of(facts)
    found, missing = known_models(run)
    cases = [_untrusted(run, role, model) for role, model in found if _needs_code(run, role, model)]
    return _or_unclear(run, cases, missing, "no model needs code that it may not run")


def _trusted(run: ConfigFacts, role: Role) -> bool:
    """Whether the model may run its code. verl's data.trust_remote_code is for the tokenizer alone."""
    key = name_of(run, f"{role.name}.model.trust_remote_code")
    return bool(run.values[key]) if key in run.values else role.spec.model.trust_remote_code


def _needs_code(run: ConfigFacts, role: Role, model: ModelFacts) -> bool:
    # verl hands its reward model to an engine, without such a key.
    if _trusted(run, role) or (role.name == "reward_model" and run.framework == "verl"):
        return False
    tokenizer = tokenizer_of(model)
    return _own_type(model) or (tokenizer is not None and tokenizer.needs_remote_code and not _built_in(model))


def _built_in(model: ModelFacts) -> bool:
    return str(model.sizes.get("model_type")) in native_models()


def _own_type(model: ModelFacts) -> bool:
    return bool(model.auto_map) and not _built_in(model)


def _untrusted(run: ConfigFacts, role: Role, model: ModelFacts) -> Case:
    field, kind = f"{role.name}.model.trust_remote_code", model.sizes.get("model_type", "no model_type")
    code = model.auto_map.get("AutoConfig") or next(iter(model.auto_map.values()), "its tokenizer's code")
    newer = _major_minor(str(model.sizes.get("transformers_version", ""))) > _major_minor(run_limits().native_version)
    # A transformers newer than our list may have the type built in by now.
    status = "warn" if newer or not model.auto_map else "fail"
    key = name_of(run, field)
    return Case(status, field, f"{key}=true for {kind}", f"false, but {model.path or role.name} loads {code}", to=True)


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


@check("CFG033", "No model is trusted without need", needs=("config",), playbook="run-remote-code",
       problem="A model is trusted without need")  # fmt: skip
def trust_without_need(facts: Facts) -> Verdict:
    """Notices trust_remote_code for a model that names no code.

    What it does:
        Compares the setting with `auto_map` of config.json and of the tokenizer's files.

    Why it matters:
        The setting lets anyone who can write to the model's directory or repository run code in every worker.
    """
    run = config_of(facts)
    found, missing = known_models(run)
    cases = [
        Case("info", f"{role.name}.model.trust_remote_code", "false",
             f"trust_remote_code for {role.name}, whose model names no code of its own", to=False)
        for role, model in found
        if _trusted(run, role) and not model.auto_map and not _tokenizer_code(model)
    ]  # fmt: skip
    return _or_unclear(run, cases, missing, "none that names no code")


def _tokenizer_code(model: ModelFacts) -> bool:
    tokenizer = tokenizer_of(model)
    return tokenizer is None or tokenizer.needs_remote_code
