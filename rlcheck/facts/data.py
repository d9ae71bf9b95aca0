"""What `rlcheck data` found in the files of a data set, read to the end."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class Spot(Struct, frozen=True):
    """One place. `line` counts from 1 in files of lines; in tables `row` counts from 0, as pandas and pyarrow do."""

    file: str
    line: int = 0
    row: int = -1
    field: str = ""
    text: str = ""
    """What is there, shortened, or what it should agree with."""

    @property
    def place(self) -> str:
        """`FILE:LINE` or `FILE:row N`, and the field."""
        here = (
            f"{self.file}:row {self.row}" if self.row >= 0 else f"{self.file}:{self.line}" if self.line else self.file
        )
        return f"{here}:{self.field}" if self.field else here


class Trouble(Struct, frozen=True):
    """One kind of thing that is wrong: how often in all, and the first places, in the order of the files."""

    kind: str
    count: int
    spots: tuple[Spot, ...] = ()


class Column(Struct, frozen=True):
    """A column, nested ones by dotted path. `kinds`: rows (or elements) of each kind: text, integer, number, boolean,
    null, list, object, …. `missing`: rows of the file that do not have it (top level alone). `odd`: the first place of
    each kind but the commonest."""

    name: str
    kinds: dict[str, int] = {}
    missing: int = 0
    odd: dict[str, Spot] = {}


class DataFile(Struct, frozen=True):
    """One file. `format`: lines, gz, array (a file that is one JSON array), parquet, arrow."""

    path: str
    split: str = "train"
    format: str = ""
    num_bytes: int = 0
    num_lines: int = 0
    num_rows: int = 0
    num_blank: int = 0
    num_crlf: int = 0
    problem: str = ""
    """Why it could not be read, or not to its end."""
    same_as: str = ""
    """An earlier file of the list that is this one: the same path, or another name of it."""
    lacking: str = ""
    """The library that reading it needs and that the examined Python does not have."""
    columns: tuple[Column, ...] = ()


class PromptLengths(Struct, frozen=True):
    """Lengths of prompts as the model gets them: in tokens with the tokenizer, else in bytes of the text.

    `num_too_long` is exact. `sample` holds sorted lengths of rows that were drawn by a seed. `num_bounded` prompts were
    not tokenized, because text of so few bytes cannot have more tokens than the limit.
    """

    unit: str = "bytes"
    limit: int = 0
    sample: tuple[int, ...] = ()
    num_measured: int = 0
    num_bounded: int = 0
    num_too_long: int = 0
    longest: int = 0
    tokenizer: str = ""
    problem: str = ""
    has_template: bool = False
    append: dict[str, str] = {}
    """For a plain and a thinking answer: what the chat template does to it later; "" where it only appends."""


class Asked(Struct, frozen=True):
    """What the run wants of its data, and how it was judged. `framework`: rltrain, verl, spec, or "" without a config.

    `guessed`: keys that no config named and that were taken for what they look like.
    """

    framework: str = ""
    source: str = ""
    prompt_key: str = ""
    source_key: str = ""
    truth_key: str = ""
    guessed: tuple[str, ...] = ()
    likely: dict[str, str] = {}
    """For `prompt_key` and `source_key` that no file has: a column that looks like it."""
    keys: dict[str, str] = {}
    """The framework's own keys for prompt_key, source_key, max_prompt_length, train_batch_size, function_path, …"""
    max_prompt_length: int = 0
    filter_overlong_prompts: bool = False
    truncation: str = "error"
    train_batch_size: int = 0
    train_max_samples: int = -1
    multi_turn: bool = False
    reward: str = ""
    """How responses are scored, in words."""
    scored_sources: tuple[str, ...] = ()


class DataFacts(Struct, frozen=True):
    """The files of one run's data."""

    files: tuple[DataFile, ...] = ()
    asked: Asked = Asked()
    troubles: tuple[Trouble, ...] = ()
    counts: dict[str, int] = {}
    """Things worth counting that are not wrong: plain prompts, prompts of several turns, rows with images, …"""
    sources: dict[str, dict[str, int]] = {}
    """By split: rows of each source."""
    lengths: PromptLengths = PromptLengths()
    most_rows: int = 0
    """Rows of each file that were read at most; 0: all. What is then said of a file is said of those."""

    def trouble(self, kind: str) -> Trouble:
        """What is known of KIND; a count of 0 where there is none."""
        return next((trouble for trouble in self.troubles if trouble.kind == kind), Trouble(kind=kind, count=0))

    def num_rows(self, split: str) -> int:
        """Rows of one split, those that cannot be used included."""
        return sum(file.num_rows for file in self.files if file.split == split)
