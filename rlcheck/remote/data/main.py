"""The worker: takes tasks, answers with parts. One of several beside each other; each reads its own slices.

Tasks are JSON lines: {"do": "describe", "path"} and {"do": "read", "path", "kind", "start", "end"}, and
{"do": "sift", "path", "keep", "out"}. Every task ends with one answer that has "done".
"""

from __future__ import annotations

import os
from typing import Any

from rlcheck_dataset import lines, tables
from rlcheck_dataset.judge import REASONS, Judge
from rlcheck_dataset.part import Part

PART_ROWS = 16384


def main(options: dict, wire: Any) -> None:
    """Answer tasks until nobody gives any more."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one worker for each core already
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    judge = Judge(options)
    wire.say({"ready": True, "reasons": REASONS, "lengths": judge.lengths.about()})
    while True:
        task = wire.hear()
        if task is None:
            return
        try:
            answer = _TASKS[task["do"]](task, judge, wire)
        except tables.Lacking as error:
            answer = {"lacking": str(error)}
        except (OSError, ValueError, EOFError, MemoryError, RecursionError) as error:
            answer = {"error": one_line(error)}
        except Exception as error:  # a library that takes the file's form for granted
            answer = {"error": f"{type(error).__name__}: {one_line(error)}"}
        wire.say({"done": True, **answer})


def one_line(error: BaseException) -> str:
    """The first line of what ERROR says."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0][:300].encode("utf-8", "backslashreplace").decode() if text.strip() else ""


def _describe(task: dict, judge: Judge, wire: Any) -> dict:
    return tables.describe(task["path"], task["kind"])


def _read(task: dict, judge: Judge, wire: Any) -> dict:
    kind, path = task["kind"], task["path"]
    judge.take_keys(task)
    part = Part(judge, task["start"])
    try:
        encoding = lines.wide_encoding(path, kind) if kind in lines.KINDS else ""
        if encoding:
            if task["start"] == 0:
                part.wide(encoding)
        elif kind in lines.KINDS:
            for number, line in enumerate(lines.read(path, kind, task["start"], task["end"])):
                if number == task["most_rows"] > 0:
                    break
                part.line(line, is_first=number == 0 and task["start"] == 0)
                if part.num_lines == PART_ROWS:
                    wire.say({"part": part.told()})
                    part = Part(judge, task["start"])
        else:
            for values in tables.read(path, kind, task["start"], task["end"]):
                part.row(values)
                if part.num_lines == PART_ROWS:
                    wire.say({"part": part.told()})
                    part = Part(judge, task["start"])
    finally:
        wire.say({"part": part.told()})
    return {}


def _sift(task: dict, judge: Judge, wire: Any) -> dict:
    return tables.sift(task["path"], task["kind"], task["verdicts"], task["reasons"], task["clean"], task["rejects"])


_TASKS = {"describe": _describe, "read": _read, "sift": _sift}
