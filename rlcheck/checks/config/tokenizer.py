"""Tokenizers against models: token numbers, chat template, and the tokens that end a response."""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, skip, unknown
from rlcheck.checks.config.limits import run_limits
from rlcheck.checks.config.roles import Role, known_models, size, tokenizer_of
from rlcheck.checks.config.say import Case, conclude, config_of, name_of, unclear
from rlcheck.facts.base import Missing, MissingKind, why_missing
from rlcheck.facts.config import ConfigFacts, ModelFacts, TokenizerFacts
from rlcheck.facts.document import Facts

# What a reader gives as the source of a model that rltrain makes from its config.
_MADE = "toy.model"
# Classes without special tokens of their own: what the files do not name is not there.
_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")


@check("CFG034", "Every token has a row in the embedding", needs=("config",), playbook="run-tokenizer",
       problem="Some tokens have no row in the embedding")  # fmt: skip
def tokens_in_embedding(facts: Facts) -> Verdict:
    """Compares the tokenizer's highest token number with the rows of the embedding.

    What it does:
        The actor's tokenizer makes the tokens of actor, reference and critic; a reward model has its own. An embedding
        with more rows than tokens (padded) is fine. Fails when the end or padding token is beyond it.

    Why it matters:
        A token beyond the embedding ends in a device-side assert, seen as an illegal memory access somewhere later. A
        padding token that was added without enlarging the embedding is the usual way to get there.
    """
    run = config_of(facts)
    found, missing = known_models(run)
    actor = next((tokenizer_of(model) for role, model in found if role.name == "actor"), None)
    pairs = [(role, model, tokenizer_of(model) if role.name == "reward_model" else actor) for role, model in found]
    judged = [
        (role, model, tok)
        for role, model, tok in pairs
        if tok is not None and tok.max_token_id >= 0 and size(model, "vocab_size")
    ]
    if not judged:
        if found and all(_is_made(model) for _, model in found):
            return skip("the run makes its own tokenizer")
        return unclear(missing) or unclear(_tokenizer_missing(found)) or skip("no tokenizer beside a vocabulary size")
    cases = [case for role, model, tok in judged for case in _beyond(role, model, tok)]
    return conclude(run, cases, "all tokens have rows")


def _tokenizer_missing(found: tuple[tuple[Role, ModelFacts], ...]) -> Missing | None:
    reasons = [reason for _, model in found if (reason := why_missing(model.tokenizer)) is not None]
    return next((reason for reason in reasons if reason.kind is not MissingKind.ABSENT), None)


def _beyond(role: Role, model: ModelFacts, tokenizer: TokenizerFacts) -> list[Case]:
    rows, field = size(model, "vocab_size"), f"{role.name}.model.path"
    for word, number in (("pad", tokenizer.pad_id), ("eos", tokenizer.eos_id)):
        if number >= rows:
            text = getattr(tokenizer, f"{word}_token")
            return [Case("fail", field, f"tokens below the embedding's {rows} rows",
                         f"the {word} token {text} with number {number}")]  # fmt: skip
    if tokenizer.max_token_id >= rows:
        return [Case("warn", field, f"tokens below the embedding's {rows} rows",
                     f"a tokenizer that goes up to {tokenizer.max_token_id}")]  # fmt: skip
    return []


@check("CFG035", "The policy's model has a tokenizer", needs=("config",), playbook="run-tokenizer",
       caused_by=("CFG030",), problem="The policy's model has no tokenizer")  # fmt: skip
def has_tokenizer(facts: Facts) -> Verdict:
    """Looks for the tokenizer's files beside the actor's model, or where the config says.

    What it does:
        Looks for tokenizer.json, tokenizer.model or vocabulary files.

    Why it matters:
        Checkpoints of training runs are often saved without the tokenizer; loading then stops in every worker.
    """
    run = config_of(facts)
    actor = run.models.get("actor")
    if actor is None or actor.value is None:
        return unclear(actor and why_missing(actor)) or skip("no model to look beside")
    if _is_made(actor.value):
        return skip("the run makes its own tokenizer")
    missing = why_missing(actor.value.tokenizer)
    if missing is None:
        return passed(f"in {actor.value.tokenizer.value.directory}" if actor.value.tokenizer.value else "found")
    if missing.kind is not MissingKind.ABSENT or not actor.value.path:
        return unclear(missing) or skip("sizes alone were given")
    own = run.spec.actor.model.tokenizer_path
    field = "actor.model.tokenizer_path" if own else "actor.model.path"
    return conclude(run, [Case("fail", field, "the files of a tokenizer", f"none: {missing.reason}")], "")


@check(
    "CFG036", "Prompts can be put into a chat template", needs=("config",), playbook="run-chat-template",
    caused_by=("CFG030", "CFG035"),
)  # fmt: skip
def chat_template(facts: Facts) -> Verdict:
    """Looks for a chat template: of the tokenizer, beside it, or in the config.

    What it does:
        verl's usual agent loop puts every prompt into the template. rltrain needs one for prompts that are messages,
        and takes prompts that are plain text as they are.

    Why it matters:
        Base models come without a template, and transformers has had no default one since 4.44: the first batch stops
        with "tokenizer.chat_template is not set".
    """
    run = config_of(facts)
    if run.spec.actor.model.custom_chat_template:
        return passed("the config gives one")
    tokenizer, verdict = _actor_tokenizer(run)
    if tokenizer is None:
        return verdict
    if tokenizer.chat_template:
        return passed(tokenizer.template_place or "found")
    if run.framework == "rltrain" and run.spec.data.made:
        return passed("the task brings its own")
    sure = run.framework == "verl" and not _own_prompts(run)
    return conclude(run, [Case("fail" if sure else "warn", "actor.model.custom_chat_template",
                               "a chat template", "none, neither of the tokenizer nor in the config")], "")  # fmt: skip


def _own_prompts(run: ConfigFacts) -> bool:
    """Whether code of the user's own may make the prompts: a dataset class, an agent loop, text without template."""
    agent = "actor_rollout_ref.rollout.agent."
    keys = ("data.custom_cls.path", f"{agent}agent_loop_config_path", f"{agent}agent_loop_manager_class")
    loop = run.values.get(f"{agent}default_agent_loop", "single_turn_agent")
    return loop not in ("single_turn_agent", "tool_agent") or any(run.values.get(key) for key in keys)


def _is_made(model: ModelFacts) -> bool:
    """Whether the run makes this model, and a tokenizer for it."""
    return not model.path and model.source == _MADE


def _actor_tokenizer(run: ConfigFacts) -> tuple[TokenizerFacts | None, Verdict]:
    """The actor's tokenizer, or the verdict that takes its place."""
    model = run.models.get("actor")
    if model is None or model.value is None:
        return None, unclear(model and why_missing(model)) or skip("no model whose tokenizer could be read")
    if _is_made(model.value):
        return None, skip("the run makes its own tokenizer")
    if model.value.tokenizer.value is None:
        return None, unclear(why_missing(model.value.tokenizer)) or skip("there is no tokenizer")
    return model.value.tokenizer.value, passed("")


@check("CFG037", "Responses can end", needs=("config",), playbook="run-end-token", caused_by=("CFG035",),
       problem="Responses cannot end")  # fmt: skip
def end_token(facts: Facts) -> Verdict:
    """Looks for the token that ends a response.

    What it does:
        Reads eos_token of the tokenizer and eos_token_id of generation_config.json.

    Why it matters:
        Without one every response runs to its full length: slow, scored as cut off, and nothing learns to stop.
    """
    run = config_of(facts)
    tokenizer, verdict = _actor_tokenizer(run)
    if tokenizer is None:
        return verdict
    if tokenizer.eos_token or tokenizer.eos_id >= 0:
        return passed(f"{tokenizer.eos_token} ({tokenizer.eos_id})")
    if tokenizer.class_name not in _PLAIN_CLASSES:
        return unknown(f"its files name none; {tokenizer.class_name or 'its class'} may bring one")
    model = run.models["actor"].value
    ends = model.generation_eos if model is not None else ()
    found = f"none{f', only generation_config names {list(ends)}' if ends else ''}"
    refused = run.framework == "rltrain"
    case = Case("fail" if refused else "warn", "actor.model.path", "an eos_token in the tokenizer's config",
                f"{found}, which rltrain refuses" if refused else found)  # fmt: skip
    return conclude(run, [case], "")


@check("CFG038", "The end of a turn ends the response", needs=("config",), playbook="run-end-token",
       problem="The end of a turn does not end the response")  # fmt: skip
def end_of_turn(facts: Facts) -> Verdict:
    """Compares the token that ends a turn in the chat template with the tokens that end generation.

    What it does:
        Looks for the known markers of a turn's end in the template. The engine stops at the tokenizer's eos_token and
        at the numbers in generation_config.json.

    Why it matters:
        Base models of several families carry a chat template whose turns end with another token than their eos: the
        policy writes on behind its answer, until it finds eos by itself. That wastes tokens and blurs the reward.
    """
    run = config_of(facts)
    tokenizer, verdict = _actor_tokenizer(run)
    if tokenizer is None:
        return verdict
    template = run.spec.actor.model.custom_chat_template or tokenizer.chat_template
    marks = [mark for mark in run_limits().end_of_turn if mark in template]
    model = run.models["actor"].value
    ends = set(model.generation_eos if model is not None else ()) - {tokenizer.eos_id}
    if not marks or tokenizer.eos_token in marks or ends or not tokenizer.eos_token:
        return passed("it does" if marks else "no known marker in the template")
    return conclude(
        run,
        [Case("info", "actor.model.path", f"{marks[0]} among the tokens that end a response",
              f"turns end with {marks[0]} in the template, responses only with {tokenizer.eos_token}")],
        "",
    )  # fmt: skip


@check("CFG039", "Actor and critic count tokens alike", needs=("config",), playbook="run-tokenizer",
       problem="Actor and critic count tokens differently")  # fmt: skip
def same_vocabulary(facts: Facts) -> Verdict:
    """Compares the vocabularies of actor and critic, which read the same tokens.

    What it does:
        Compares eos_token, its number and the number of tokens of both tokenizers, where the critic has one.

    Why it matters:
        The critic reads the actor's token numbers. With another tokenizer the numbers mean other words: nothing stops,
        and the values are noise.
    """
    run = config_of(facts)
    found, missing = known_models(run)
    models = {role.name: model for role, model in found}
    if run.spec.critic is None:
        return skip("there is no critic")
    if not {"actor", "critic"} <= set(models):
        return unclear(missing) or skip("one of the two models is not known")
    actor, critic = (tokenizer_of(models[name]) for name in ("actor", "critic"))
    if actor is None or critic is None or models["actor"].path == models["critic"].path:
        return passed("nothing says otherwise")
    if (actor.eos_token, actor.eos_id) == (critic.eos_token, critic.eos_id):
        return passed("their ends are the same token")
    key = name_of(run, "critic.model.path")
    case = Case("warn", "critic.model.path", f"the actor's tokens, ending with {actor.eos_token} ({actor.eos_id})",
                f"{key} with {critic.eos_token} ({critic.eos_id})")  # fmt: skip
    # A base and an instruct model of one family differ in their end alone.
    if actor.num_tokens == critic.num_tokens or actor.max_token_id == critic.max_token_id:
        return passed("the vocabularies are as large")
    return conclude(run, [case], "")
