"""What `rlcheck data` shows besides its findings: files, columns, lengths as bars, sources."""

from __future__ import annotations

from rlcheck.facts.data import Column, DataFacts, DataFile, PromptLengths
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit
from rlcheck.text import MIB, spaced

_MAX_COLUMNS = 24
_MAX_SOURCES = 12
_BAR = 30
_BINS = 10


def headline(facts: Facts) -> str:
    """Rows, files, sources, lengths in a line."""
    section = facts.data.value
    if section is None:
        return ""
    parts = [f"{spaced(section.num_rows('train'))} rows in {_files(section, 'train')}"]
    if any(file.split == "val" for file in section.files):
        parts.append(f"validation {spaced(section.num_rows('val'))} rows")
    if section.most_rows:
        parts.append(f"no more than the first {spaced(section.most_rows)} of a file were read")
    if section.asked.prompt_key:
        parts.append(f"prompts in {section.asked.prompt_key}")
    return ", ".join(parts)


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The tables; nothing where no data was read."""
    section = facts.data.value
    if section is None:
        return ()
    found = [_files_table(section), *(_columns(file) for file in section.files[:3] if file.columns)]
    found += [_lengths(section)] if section.lengths.sample else []
    found += [_sources(section, split) for split, sources in section.sources.items() if len(sources) > 0]
    return tuple(found)


def _files(section: DataFacts, split: str) -> str:
    number = sum(file.split == split for file in section.files)
    return f"{number} file{'' if number == 1 else 's'}"


def _files_table(section: DataFacts) -> Exhibit:
    rows = tuple(
        (file.path, file.split, _form(file), f"{file.num_bytes / MIB:.1f} MiB", spaced(file.num_rows))
        for file in section.files
    )
    notes = [f"No config names these; taken for what they look like: {', '.join(section.asked.guessed)}."]
    return Exhibit(
        title="Files", columns=("file", "split", "form", "size", "rows"), rows=rows,
        notes=tuple(notes) if section.asked.guessed else (),
    )  # fmt: skip


def _form(file: DataFile) -> str:
    return {"lines": "JSON lines", "gz": "JSON lines, packed", "array": "JSON array"}.get(file.format, file.format)


def _columns(file: DataFile) -> Exhibit:
    shown = file.columns[:_MAX_COLUMNS]
    rows = tuple((column.name, _kinds(column), spaced(column.kinds.get("null", 0)), spaced(column.missing))
                 for column in shown)  # fmt: skip
    rest = len(file.columns) - len(shown)
    return Exhibit(
        title=f"Columns of {file.path}",
        columns=("column", "types", "null", "missing"),
        rows=rows,
        notes=(f"and {rest} more, nested or rare",) if rest else (),
    )


def _kinds(column: Column) -> str:
    kinds = sorted((kind for kind in column.kinds if kind != "null"), key=lambda kind: -column.kinds[kind])
    if len(kinds) <= 1:
        return kinds[0] if kinds else "null"
    return ", ".join(f"{kind} {spaced(column.kinds[kind])}" for kind in kinds)


def _lengths(section: DataFacts) -> Exhibit:
    lengths = section.lengths
    sample = sorted(lengths.sample)
    low, high = sample[0], sample[-1]
    step = max(1, -(-(high - low + 1) // _BINS))
    counts = [0] * _BINS
    for value in sample:
        counts[min((value - low) // step, _BINS - 1)] += 1
    last = max(number for number, count in enumerate(counts) if count)
    most = max(counts)
    rows = tuple(
        (f"{low + n * step} - {low + (n + 1) * step - 1}", "█" * round(count / most * _BAR) or ("▁" if count else ""),
         f"{count / len(sample):.1%}")
        for n, count in enumerate(counts[: last + 1])
    )  # fmt: skip
    return Exhibit(title=f"Prompt lengths in {lengths.unit}", columns=(lengths.unit, "", "share"), rows=rows,
                   notes=tuple(_length_notes(section, lengths)))  # fmt: skip


def _length_notes(section: DataFacts, lengths: PromptLengths) -> list[str]:
    sample = sorted(lengths.sample)
    middle, high, top = (sample[min(len(sample) - 1, int(len(sample) * share))] for share in (0.5, 0.9, 0.99))
    total = sum(file.num_rows for file in section.files)
    whose = "all prompts" if len(sample) >= total else f"a seeded sample of {spaced(len(sample))} prompts"
    notes = [f"Of {whose}: half have at most {middle}, 90 % {high}, 99 % {top}, the longest {sample[-1]}."]
    if lengths.unit != "tokens":
        notes.append("Bytes of the text alone: give --tokenizer, or a --config whose model is here, for tokens.")
    elif lengths.limit:
        notes.append(
            f"Longer than {lengths.limit} tokens: {spaced(lengths.num_too_long)} (exact). "
            f"{spaced(lengths.num_bounded)} prompts were not tokenized: a byte-level tokenizer makes at "
            "most one token of each byte, and text and template have no more bytes than that."
        )  # fmt: skip
    return notes


def _sources(section: DataFacts, split: str) -> Exhibit:
    sources = sorted(section.sources[split].items(), key=lambda item: -item[1])
    total = max(1, sum(count for _, count in sources))
    most = max(1, sources[0][1])
    shown = sources[:_MAX_SOURCES]
    rows = [(name, "█" * round(max(0, count) / most * _BAR) or "▁", spaced(count), f"{count / total:.1%}")
            for name, count in shown]  # fmt: skip
    rest = sources[_MAX_SOURCES:]
    if rest:
        count = sum(number for _, number in rest)
        rows.append((f"{len(rest)} more", "", spaced(count), f"{count / total:.1%}"))
    name = "training" if split == "train" else "validation"
    return Exhibit(title=f"Sources of the {name} data", columns=("source", "", "rows", "share"), rows=tuple(rows))
