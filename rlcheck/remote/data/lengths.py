"""Prompt lengths in tokens, with the model's own tokenizer and chat template.

Only what can be too long is tokenized: a byte-level tokenizer makes at most one token of each byte of the text that it
gets. That text is the prompt and what the template puts around it, which is measured for each order of roles.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from rlcheck_dataset import append

_NFC_GROWTH = 3
"""Times that NFC lengthens UTF-8 at most: https://www.unicode.org/faq/normalization.html (maximum expansion)."""
_TRIALS = 12
"""Prompts of each order of roles that are rendered to see what the template adds."""
_SLACK_BYTES = 64
"""On top: a template may add a date."""
_MAX_ORDERS = 1000


class Lengths:
    """Without a tokenizer lengths are in bytes, and nothing is judged."""

    def __init__(self, options: dict) -> None:
        self.limit: int = options["max_prompt_length"] if options["has_config"] else 0
        self.problem = ""
        self.unit = "bytes"
        self.growth: int | None = None
        self.append: dict = {}
        self._kwargs: dict = options["template_kwargs"]
        self._tokenizer: Any = None
        self._encode: Any = None
        self._added: dict = {}
        if options["tokenizer"]:
            self._load(options)

    def about(self) -> dict:
        """What was loaded and how."""
        has_template = self._tokenizer is not None and bool(self._tokenizer.chat_template)
        return {
            "unit": self.unit,
            "problem": self.problem,
            "bounded": self.growth is not None,
            "has_template": has_template,
            "append": self.append,
        }

    def _load(self, options: dict) -> None:
        try:
            if not options["trust_remote_code"]:
                # Tokenizers need no torch, which is most of the time and memory of this import.
                sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
            from transformers import AutoTokenizer

            logging.getLogger("transformers").setLevel(logging.ERROR)
            tokenizer = AutoTokenizer.from_pretrained(
                options["tokenizer"], trust_remote_code=options["trust_remote_code"], local_files_only=True
            )
            # Without its files transformers makes an empty one and says nothing.
            if not set(tokenizer("abc 123", add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}:
                raise ValueError("it makes no tokens of text; are its files (tokenizer.json) there?")
            if options["chat_template"]:
                tokenizer.chat_template = options["chat_template"]
        except Exception as error:  # transformers raises its own and those of everything below it
            text = (str(error).strip().splitlines() or [""])[0][:200]
            self.problem = f"no tokenizer from {options['tokenizer']}: {type(error).__name__}: {text}"
            return
        self._tokenizer, self.unit = tokenizer, "tokens"
        # Without offsets, a third faster; the call above has turned truncation off.
        self._encode = getattr(getattr(tokenizer, "backend_tokenizer", None), "encode_batch_fast", None)
        self.growth = growth_of(tokenizer)
        if tokenizer.chat_template:
            self.append = append.look(self.render)

    def render(self, messages: list, ask: bool = True) -> str:
        """The text that the model gets; ASK: up to where its answer begins."""
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False, **self._kwargs)

    def measure(self, part: Any, prompt: Any, in_sample: bool) -> None:
        """Note the length of a sampled prompt, and every one that is too long."""
        if prompt.has_parts:
            part.count("unmeasured")
            return
        if prompt.turns and prompt.turns[-1][0] == "assistant":
            return
        texts = [content for _, content in prompt.turns]
        size = sum([len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts])
        if self._tokenizer is None:
            part.longest = max(part.longest, size)
            if in_sample:
                part.length(size)
            return
        if not in_sample and self._fits(prompt, size, texts):
            part.count("bounded")
            return
        num_tokens = self._tokens(part, prompt)
        if num_tokens < 0:
            return
        part.longest = max(part.longest, num_tokens)
        part.count("tokenized")
        if in_sample:
            part.length(num_tokens)
        if self.limit and num_tokens > self.limit:
            part.note("too_long", "", f"{num_tokens} tokens")

    def _fits(self, prompt: Any, size: int, texts: list) -> bool:
        """Whether the prompt cannot have more tokens than the limit, whatever its text."""
        if self.growth is None:
            return False
        if not self.limit:
            return True
        order = tuple([role for role, _ in prompt.turns])
        trials, added = self._added.get(order, (0, 0))
        if trials < _TRIALS:
            return False
        growth = 1 if all(text.isascii() for text in texts) else self.growth
        return (size + added + _SLACK_BYTES) * growth <= self.limit

    def _tokens(self, part: Any, prompt: Any) -> int:
        """Tokens of the prompt as the model gets it; -1 after saying that the template refuses it."""
        if not self._tokenizer.chat_template:
            if not prompt.is_plain:
                part.count("untemplated")
                return -1
            return self._count(prompt.turns[0][1], special=True)
        try:
            text = self.render([dict(message) for message in prompt.messages])
        except Exception as error:  # Jinja's own and whatever an expression of the template raises
            part.note("template", "", f"{type(error).__name__}: {error}")
            return -1
        self._learn(prompt, text)
        return self._count(text, special=False)

    def _count(self, text: str, special: bool) -> int:
        if self._encode is not None:
            return len(self._encode([text], add_special_tokens=special)[0].ids)
        return len(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def _learn(self, prompt: Any, text: str) -> None:
        order = tuple([role for role, _ in prompt.turns])
        trials, added = self._added.get(order, (0, 0))
        if not trials and len(self._added) >= _MAX_ORDERS:
            return
        inside = sum([len(content.encode("utf-8", "surrogatepass")) for _, content in prompt.turns])
        self._added[order] = (trials + 1, max(added, len(text.encode("utf-8", "surrogatepass")) - inside))


def growth_of(tokenizer: Any) -> int | None:
    """Times that tokens may outnumber bytes at most; None where that is not known.

    Known for byte-level BPE with no normalizer or NFC, as the tokenizer really is after loading.
    """
    try:
        built = json.loads(tokenizer.backend_tokenizer.to_str())
    except (AttributeError, ValueError):
        return None
    if built["model"].get("type") != "BPE" or not _is_byte_level(built.get("pre_tokenizer")):
        return None
    normalizer = built.get("normalizer")
    if normalizer is None:
        return 1
    return _NFC_GROWTH if normalizer.get("type") == "NFC" else None


def _is_byte_level(step: Any) -> bool:
    if not isinstance(step, dict):
        return False
    # A space put in front is one byte more: within the slack.
    return step.get("type") == "ByteLevel" or any(_is_byte_level(part) for part in step.get("pretokenizers", ()))
