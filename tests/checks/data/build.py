"""Data sections made by hand."""

from rlcheck.facts.base import known
from rlcheck.facts.data import Asked, Column, DataFacts, DataFile, PromptLengths, Spot, Trouble
from rlcheck.facts.document import Facts

FILE = "/data/train.jsonl"
RLTRAIN = Asked(framework="rltrain", prompt_key="prompt", source_key="data_source", reward="the rules gsm8k",
                max_prompt_length=512, train_batch_size=8)  # fmt: skip
VERL = Asked(framework="verl", prompt_key="prompt", source_key="data_source", max_prompt_length=512,
             reward="verl's own default_compute_score, by data source")  # fmt: skip


def file(**changes) -> DataFile:
    usual = {"path": FILE, "format": "lines", "num_bytes": 4096, "num_lines": 100, "num_rows": 100}
    return DataFile(**{**usual, **changes})


def section(*kinds: str, asked: Asked = RLTRAIN, files=(), **changes) -> Facts:
    """A file of a hundred rows with one trouble of each of KINDS, as from JSON."""
    spot = Spot(file=FILE, line=7, field="prompt", text="like this")
    troubles = tuple(Trouble(kind=kind, count=3, spots=(spot,)) for kind in kinds)
    return Facts(data=known(DataFacts(files=files or (file(),), asked=asked, troubles=troubles, **changes)))


def lengths(**changes) -> PromptLengths:
    usual = {
        "unit": "tokens",
        "limit": 512,
        "sample": (10, 20),
        "has_template": True,
        "num_measured": 10,
        "longest": 900,
    }
    return PromptLengths(**{**usual, **changes})


COLUMN = Column(name="answer", kinds={"text": 99, "integer": 1}, odd={"integer": Spot(file=FILE, line=7)})
