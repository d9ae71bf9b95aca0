"""Prompts: the run's own, and built-in ones of kinds in which rollout and training are known to part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from rltrain.config.resolve import replaced
from rltrain.config.schema import RunConfig
from rltrain.core.batch import Sample
from rltrain.core.errors import UserError
from rltrain.data.dataset import build_dataset
from rltrain.data.loader import to_prompt_batch
from rltrain.data.template import PromptEncoder

DEFAULT_COUNT = {"cpu": 16, "cuda": 64}
HOT = "high_temperature"
_LONGEST = {"cpu": 1024, "cuda": 8192}
"""Tokens of a built-in prompt at most."""
_SENTENCE = "On day {n} the shop sold {n} lamps for 1{n} coins each and took back 3 of them. "
_QUESTION = "What is {n} plus 2{n}? Think about 4 cases, then answer with one number."
_PLACE = "a prompt of the doctor's own"


@dataclass(frozen=True)
class Prompts:
    """All prompts; `data_source` of each sample is its kind."""

    usual: tuple[Sample, ...]
    """Answered as the run samples."""
    hot: tuple[Sample, ...]
    """Answered at a higher temperature."""
    notes: tuple[str, ...] = ()


def make_prompts(config: RunConfig, tokenizer: PreTrainedTokenizerBase, count: int) -> Prompts:
    """COUNT prompts from the run's data, and as many built-in ones; CONFIG is resolved."""
    notes: list[str] = []
    maker = _Maker(config, tokenizer)
    few = max(2, count // 4)
    usual = _from_data(config, tokenizer, count, notes)
    kinds: list[tuple[str, int, Callable[[int], Sample]]] = [
        ("short", few, maker.short),
        ("long", few, maker.long),
        ("multi_turn", few, maker.multi_turn),
        # Eight requests is the fewest for which vLLM's cascade attention was made.
        ("repeated_prefix", max(8, count // 2), maker.repeated_prefix),
    ]
    if not maker.encoder.has_template:
        kinds = [kind for kind in kinds if kind[0] != "multi_turn"]
        notes.append("no prompts of several turns: the tokenizer has no chat template")
    for name, number, make in kinds:
        usual += _made(name, number, make, notes)
    return Prompts(tuple(usual), tuple(_made(HOT, few, maker.short, notes)), tuple(notes))


def _made(kind: str, count: int, make: Callable[[int], Sample], notes: list[str]) -> list[Sample]:
    try:
        made = [make(number) for number in range(count)]
    except UserError as error:
        notes.append(f"no prompts of the kind {kind}: {error}")
        return []
    return [_named(sample, kind, number) for number, sample in enumerate(made)]


def _named(sample: Sample, kind: str, number: int) -> Sample:
    return Sample(
        uid=f"{kind}-{number}",
        index=number,
        data_source=kind,
        prompt_ids=sample.prompt_ids,
        messages=sample.messages,
        prompt_text=sample.prompt_text,
    )


def _from_data(config: RunConfig, tokenizer: PreTrainedTokenizerBase, count: int, notes: list[str]) -> list[Sample]:
    """Up to COUNT rows of the run's training data, chosen as a run would choose so many."""
    data = replaced(config.data, train_max_samples=2 * count, filter_overlong_prompts=True)
    try:
        rows = build_dataset(config.data.train_files, data, tokenizer, "train").rows[:count]
    except UserError as error:
        notes.append(f"no prompts from the run's data: {error}")
        return []
    return [_named(sample, "data", number) for number, sample in enumerate(to_prompt_batch(rows).samples)]


class _Maker:
    """Makes built-in prompts that fit the run's lengths."""

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.encoder = PromptEncoder(tokenizer, config.data.apply_chat_template_kwargs)
        rollout, data = config.actor_rollout_ref.rollout, config.data
        assert rollout.max_model_len is not None
        room = rollout.max_model_len - data.max_response_length
        self._most = max(2, min(data.max_prompt_length, room, _LONGEST[config.trainer.device]))

    def short(self, number: int) -> Sample:
        """A question."""
        return self._asked([_QUESTION.format(n=number + 3)])

    def long(self, number: int) -> Sample:
        """As long as a prompt of the run may be."""
        one = len(self._asked([_SENTENCE.format(n=number + 1)], whole=True).prompt_ids)
        text = "".join(_SENTENCE.format(n=number + line) for line in range(1, 2 + 2 * self._most // max(one, 1)))
        return self._asked([f"{text}{_QUESTION.format(n=number)}"])

    def multi_turn(self, number: int) -> Sample:
        """A question, an answer, another question."""
        return self._asked([_QUESTION.format(n=number), f"{3 * number + 20}", _QUESTION.format(n=number + 7)])

    def repeated_prefix(self, number: int) -> Sample:
        """The same long beginning for all, and a question of its own at the end."""
        shared, own = self.long(0).prompt_ids, self.short(number).prompt_ids
        ids = (*shared[: max(1, 3 * self._most // 4)], *own)[: self._most]
        return Sample(uid="", index=0, prompt_ids=ids)

    def _asked(self, turns: Sequence[str], whole: bool = False) -> Sample:
        """TURNS of user and assistant by turns; with what is too long cut out of the middle, unless WHOLE."""
        roles = ("user", "assistant")
        messages = tuple({"role": roles[turn % 2], "content": text} for turn, text in enumerate(turns))
        text, ids = self.encoder.encode(messages, len(turns) == 1, _PLACE)
        if len(ids) <= self._most or whole:
            return Sample(uid="", index=0, prompt_ids=tuple(ids), messages=messages, prompt_text=text)
        head = self._most // 2
        return Sample(uid="", index=0, prompt_ids=(*ids[:head], *ids[head - self._most :]))
