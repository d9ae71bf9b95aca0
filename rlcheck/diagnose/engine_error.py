"""Which error an engine raised first.

Engines run in processes of their own, and what the caller gets says only that one of them failed: vLLM's "Engine core
initialization failed. See root cause above", SGLang's "Rank 0 scheduler died". The cause is in what was printed.
https://github.com/vllm-project/vllm/issues/17618, https://github.com/vllm-project/vllm/issues/23176
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.model import CondensedLog, LogLine
from rlcheck.diagnose.signatures import load
from rlcheck.playbook import Library

_PREFIX = re.compile(
    r"^(?:\s*\((?:[\w.]+ )+pid=\d+[^)]*\))*\s*(?:(?:INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[[^\]]*\]\s*)?(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*)?"
)
"""What vLLM and SGLang put before the lines of their processes."""
_RAISED = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure)(?:: \S|$)")
_FATAL = re.compile(r"Fatal Python error|terminate called|CUDA error|Segmentation fault|out of memory", re.I)
_CONSEQUENCES = re.compile(
    r"[Rr]oot cause above|Engine ?[Cc]ore\w* (?:initialization )?(?:failed|died)|EngineDeadError|EngineGenerateError"
    r"|WorkerProc initialization failed|exception in a background process|scheduler (?:died|is dead)|EOFError"
    r"|Connection (?:reset|closed|refused)|Broken pipe|Worker proc \w+ died|resource_tracker"
)
_LIMIT = 300


def root_of(line: str, printed: Iterable[str]) -> str:
    """The error that was raised first, where `line` is only its consequence; "" where `line` says it itself.

    Args:
        line: what the caller got.
        printed: by the engine and its processes, in order.
    """
    if not (_CONSEQUENCES.search(line) or "gave no result" in line or "did not answer" in line):
        return ""
    lines = [_PREFIX.sub("", text).strip() for text in printed]
    own = [text[:_LIMIT] for text in lines if not _CONSEQUENCES.search(text)]
    raised = next((text for text in own if _RAISED.match(text)), "")
    return raised or next((text for text in own if _FATAL.search(text)), "")


def known_as(printed: Sequence[str]) -> str:
    """The playbook that `rlcheck diagnose` names for these lines, "" if none."""
    lines = tuple(LogLine(number=number, text=text) for number, text in enumerate(printed, 1))
    found = diagnose([CondensedLog(name="engine", lines=lines)], load(), Library()).diagnoses
    return found[0].id if found else ""
