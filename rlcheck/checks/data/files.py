"""Files: there, readable, of a kind that the framework takes, with rows in them."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.data.common import data, key, rows, stops
from rlcheck.facts.data import DataFile
from rlcheck.facts.document import Facts

_TAKEN = {
    "rltrain": (".jsonl", ".ndjson", ".json", ".parquet"),
    "verl": (".parquet", ".json", ".jsonl"),
}
"""By name alone: trainer/rltrain/data/readers.py; verl/utils/dataset/rl_dataset.py in 0.7.1 to 0.9.1."""


@check("DAT001", "Data files can be read to their ends", needs=("data",), playbook="data-file",
       problem="A data file cannot be read to its end")  # fmt: skip
def readable(facts: Facts) -> Verdict:
    """Reads every file from its first to its last row.

    What it does:
        Streams each file with the examined Python and reports what the system or the library for the format says
        against it: permissions, a cut file, a broken row group, a directory with several splits.

    Why it matters:
        A trainer reads its data after the cluster is up; a file that breaks in the middle ends the run there, with all
        GPUs held.
    """
    section = data(facts)
    broken = [file for file in section.files if file.problem]
    if not broken:
        return passed(f"{len(section.files)} file{'' if len(section.files) == 1 else 's'} read to the end")
    return fail(
        "files that can be read to their ends",
        f"{len(broken)} of {len(section.files)} that cannot",
        details=tuple(f"{file.path}: {file.problem} (after {rows(file.num_rows)})" for file in broken),
        evidence=tuple(evidence("data.files", file.problem, file.path) for file in broken),
        params={"file": broken[0].path},
    )


@check("DAT002", "The examined Python can read these files", needs=("data",), playbook="requirement-missing",
       problem="The examined Python lacks a library for these files")  # fmt: skip
def library(facts: Facts) -> Verdict:
    """Looks for the library that a kind of file needs.

    What it does:
        Parquet and Arrow are read with pyarrow of the examined Python; without it those files are left out here.

    Why it matters:
        Every trainer needs the same library to read the same file, and stops without it.
    """
    section = data(facts)
    without = [file for file in section.files if file.lacking]
    if not without:
        return passed("nothing is lacking")
    return warn(
        "pyarrow in the examined Python for Parquet and Arrow",
        without[0].lacking,
        details=tuple(f"{file.path}: not read" for file in without),
        evidence=(evidence("data.files", without[0].lacking, without[0].path),),
        params={"file": without[0].path, "package": "pyarrow"},
    )


@check("DAT003", "Every data file holds rows", needs=("data",), playbook="data-file",
       caused_by=("DAT001", "DAT002", "DAT005", "DAT006"),
       problem="A data file holds no rows")  # fmt: skip
def not_empty(facts: Facts) -> Verdict:
    """Counts the rows of each file.

    What it does:
        Reports files that can be read and hold no row at all.

    Why it matters:
        A file that an upload or a filter left empty stops the trainer, or quietly takes a whole source out of the run.
    """
    section = data(facts)
    empty = [file for file in section.files if not file.num_rows and not file.problem and not file.lacking]
    if not empty:
        total = sum(file.num_rows for file in section.files)
        return passed(f"{total} rows")
    return fail(
        "rows in every file",
        f"none in {len(empty)} of {len(section.files)}",
        details=tuple(f"{file.path}: {_lines(file)}no row" for file in empty),
        evidence=tuple(evidence("data.files", "0 rows", file.path) for file in empty),
        params={"file": empty[0].path},
    )


def _lines(file: DataFile) -> str:
    if file.format not in ("lines", "gz"):
        return ""
    return f"{file.num_lines} line{'' if file.num_lines == 1 else 's'}, "


@check("DAT004", "The framework reads files of this kind", needs=("data",), playbook="data-file",
       problem="The framework does not read files of this kind")  # fmt: skip
def known_kind(facts: Facts) -> Verdict:
    """Compares names and forms of the files with what the framework of the config takes.

    What it does:
        rltrain reads .jsonl, .ndjson and .json (an object a line), .parquet and directories of datasets.save_to_disk;
        verl reads .parquet, .json and .jsonl. Packed files and other names are refused by both.

    Why it matters:
        The framework goes by the end of the name and stops with "Unsupported file format" before the first step.
    """
    section = data(facts)
    taken = _TAKEN.get(section.asked.framework)
    if taken is None:
        return skip("no config says which framework reads these files")
    framework = section.asked.framework
    wrong: list[str] = []
    for file in section.files:
        is_saved = framework == "rltrain" and file.format == "arrow" and not file.path.endswith(".arrow")
        if not is_saved and not file.path.lower().endswith(taken):
            wrong.append(f"{file.path}: {framework} reads {', '.join(taken)}")
        elif framework == "rltrain" and file.format == "array":
            wrong.append(f"{file.path}: one JSON array; rltrain reads an object a line: jq -c '.[]'")
    if not wrong:
        return passed(f"{framework} reads all of them")
    return fail(
        f"files that {framework} reads",
        f"{len(wrong)} that it refuses",
        details=tuple(wrong),
        evidence=(evidence("data.files", wrong[0], section.asked.source),),
        params={"file": wrong[0].partition(": ")[0]},
    )


@check("DAT022", "The data fills a batch", needs=("data",), playbook="data-length", caused_by=("DAT003", "DAT019"),
       problem="The data does not fill a batch")  # fmt: skip
def fills_batch(facts: Facts) -> Verdict:
    """Compares the number of training rows with the batch.

    What it does:
        Takes rows that the length filter leaves out away, and those beyond train_max_samples.

    Why it matters:
        Both rltrain and verl drop a last batch that is not full: with fewer rows than one batch there is no batch at
        all, and the run stops when its loader is empty.
    """
    section, asked = data(facts), data(facts).asked
    if not asked.train_batch_size:
        return skip("no config says how many rows a batch has")
    if any(file.problem or file.lacking for file in section.files if file.split == "train"):
        return skip("not all training files could be read")
    left = section.num_rows("train") - (section.lengths.num_too_long if asked.filter_overlong_prompts else 0)
    if asked.train_max_samples > 0:
        left = min(left, asked.train_max_samples)
    if not section.num_rows("train") or left >= asked.train_batch_size:
        return passed(f"{rows(left)} for batches of {asked.train_batch_size}")
    if section.most_rows:
        return skip(f"no more than the first {section.most_rows} rows of a file were read")
    return stops(section)(
        f"at least one batch of {asked.train_batch_size} rows",
        rows(left) + (f" ({section.lengths.num_too_long} too long)" if asked.filter_overlong_prompts else ""),
        evidence=(evidence("data.files", left, asked.source),),
        params={"setting": f"{key(section, 'train_batch_size')}={max(1, left)}", "file": section.files[0].path},
    )
