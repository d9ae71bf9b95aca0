"""The sites of all releases of a package in one: the same site once, and of too many those that users can hit."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlcheck.diagnose.source.recorded import Entry, is_specific, line_of, literals_of
from tests.tools.raise_sites.fetch import wanted
from tests.tools.raise_sites.reading import Found, sites

GENERIC = re.compile(
    r"^(?:(?:list|tuple|string|pop) index out of range|No module named|cannot import name"
    r"|.{0,40}object has no attribute"
    r"|module .{0,40}has no attribute|name .{0,40}is not defined|.{0,40}got an unexpected keyword argument"
    r"|.{0,40}missing \d* ?\{?\w*\}? ?required positional|unsupported operand"
    r"|.{0,40}object is not (?:callable|iterable)"
    r"|invalid literal for|could not convert string|not enough values to unpack|too many values to unpack"
    r"|dictionary changed size|maximum recursion depth|division by zero|out of memory|CUDA error|CUDA out of memory"
    r"|No such file or directory|Permission denied|Connection refused|Caught \{|Failed to import \{)"
)
"""What Python, CUDA and the system say: no library has it for itself."""
_HITS = (
    (6, re.compile(r"\b[A-Z]{2,}_[A-Z0-9_]{3,}\b")),
    (
        4,
        re.compile(
            r"--[a-z][\w-]+|\bpip3? install\b|pip install|is not installed|requires? .{0,30}install|\bupgrade\b"
        ),
    ),
    (
        4,
        re.compile(
            r"(?i)divisible|at least|at most|greater than|less than|larger|smaller|exceed|maximum|too (?:long|large)"
        ),
    ),
    (
        3,
        re.compile(
            r"(?i)\b(?:shapes?|dtypes?|dimensions?|sizes?|length|GPUs?|memory|tokens?|version|world_size|ranks?)\b"
        ),
    ),
    (
        3,
        re.compile(
            r"(?i)\bmust be|must have|should be|not supported|unsupported|cannot be|expected|invalid|unknown|please"
        ),
    ),
)
_OF_SETTINGS = {"config key": 5, "environment variable": 6, "constructor argument": 4, "argument": 2, "limit": 2}
_OLDER = 5
"""What a site is worth less if a newer release has the same message under another condition or in another file."""
_RARE = re.compile(
    r"/(?:models?|cute|kernels?|ops|onnx|tpu|xpu|npu|hpu|musa|rocm|hardware_backend|ascend\w*|pipelines|quantizers?|_dynamo"
    r"|dashboard|autoscaler|_private/accelerators|tune|workflow|experimental|disaggregation|kv_transfer|kv_connector"
    r"|snapshot|backends|multimodal|processors|mem_cache|llm/_internal|data/_internal|compression|inference"
    r"|datapipes|_higher_order_ops|commands)/|_meta_registrations|/prune\.py|_(?:tf|flax)_|/modular_|/tf_|/flax_"
)
_COMMON = re.compile(
    r"config|args|arg_utils|/engine|llm_engine|/executor|/worker|/trainer|/utils|parallel_state|/init|platforms"
    r"|sampling_params|weight_utils|loader|tokeniz|/(?:ppo|grpo|dpo|sft|rollout|workers|cli|hub|fsdp\w*|distributed)/"
)


def merged(archives: Sequence[Path]) -> list[Found]:
    """Return the sites of ARCHIVES, the oldest first: each with the first and the last one that it is in."""
    spans: dict[Found, tuple[int, int]] = {}
    known: dict[tuple[str, bytes], list[Found]] = {}
    for number, path in enumerate(archives):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not wanted(name, name.partition("/")[0]):
                    continue
                data = archive.read(name)
                key = name, hashlib.blake2b(data, digest_size=16).digest()
                if key not in known:
                    known[key] = [one for one in sites(name, data) if not GENERIC.match(one.entry.template)]
                for one in known[key]:
                    spans[one] = spans.get(one, (number, number))[0], number
    functions: dict[tuple[str, str], set[str]] = {}
    for one in spans:
        functions.setdefault((one.entry.kind, one.entry.template), set()).add(_same(one)[1])
    return [
        one._replace(entry=msgspec.structs.replace(
            one.entry, first=first, last=last, shared=len(functions[one.entry.kind, one.entry.template]) > 1,
        ))
        for one, (first, last) in spans.items()
    ]  # fmt: skip


def worth(one: Found, releases: int) -> int:
    """How likely a user is to see this site, as a number to sort by."""
    entry = one.entry
    text = " ".join(literals_of(entry.template))
    told = f"{text} {' '.join(entry.conditions)}"
    score = sum(points for points, form in _HITS if form.search(told))
    score += max((_OF_SETTINGS[known.kind] for known in entry.settings), default=0)
    score += 2 * bool(entry.conditions) + 3 * bool(is_specific(entry.template)) + min(entry.last - entry.first, 6)
    score += 2 * (entry.last == releases - 1) - 3 * (entry.last < releases // 3)
    score += 3 * bool(_COMMON.search(one.file)) - 5 * bool(_RARE.search(one.file))
    score -= 3 * (entry.kind in ("AssertionError", "NotImplementedError"))
    return score - len(line_of(entry)) // 25


def _same(one: Found) -> tuple[str, str, str]:
    """What stays while a site moves, or its conditions are written in another way."""
    return one.entry.kind, one.entry.function.rpartition(".")[2], one.entry.template


def kept(found: Sequence[Found], releases: int, budget: int) -> list[Found]:
    """Return those of FOUND that are worth most and fit into BUDGET bytes."""
    newest: dict[tuple[str, str, str], int] = {}
    for one in found:
        newest[_same(one)] = max(newest.get(_same(one), 0), one.entry.last)

    def rank(one: Found) -> tuple[int, str, str]:
        is_older = one.entry.last < newest[_same(one)]
        return _OLDER * is_older - worth(one, releases), one.file, line_of(one.entry)

    chosen: list[Found] = []
    files: set[str] = set()
    left = budget
    for one in sorted(found, key=rank):
        size = len(line_of(one.entry).encode()) + 1 + (one.file not in files) * (len(one.file) + 1)
        if size > left:
            break
        chosen.append(one)
        files.add(one.file)
        left -= size
    return chosen


def written_record(date: str, package: str, releases: Sequence[str], found: Sequence[Found]) -> str:
    """Return the text of a record."""
    by_file: dict[str, list[Entry]] = {}
    for one in found:
        by_file.setdefault(one.file, []).append(one.entry)
    lines = [f"# read on {date}", f"# {package} {' '.join(releases)}"]
    for file, entries in sorted(by_file.items()):
        lines += [file, *sorted(map(line_of, entries))]
    return "\n".join(lines) + "\n"
