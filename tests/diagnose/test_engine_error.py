"""Which of the errors that an engine prints was the first, and which playbook knows it."""

from __future__ import annotations

import pytest

from rlcheck.diagnose.engine_error import known_as, root_of

WRAPPED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
VLLM = [
    "INFO 11-22 02:00:00 [core.py:101] Initializing a V1 LLM engine",
    "(EngineCore_DP0 pid=42) ERROR 11-22 02:00:09 [core.py:946] Traceback (most recent call last):",
    '(EngineCore_DP0 pid=42) ERROR 11-22 02:00:09 [core.py:946]   File "x.py", line 1, in __init__',
    f"(EngineCore_DP0 pid=42) ERROR 11-22 02:00:09 [core.py:946] {OOM}",
    f"(APIServer pid=41) {WRAPPED}",
]
SGLANG = [
    "[2026-11-22 02:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    "ValueError: Not enough memory. Please try to increase --mem-fraction-static.",
    "[2026-11-22 02:00:10] Rank 0 scheduler died during initialization (exit code: 1).",
]


@pytest.mark.parametrize(
    ("line", "printed", "root"),
    [
        (WRAPPED, VLLM, OOM),
        ("EngineDeadError: EngineCore encountered an issue.", VLLM, OOM),
        ("RuntimeError: Rank 0 scheduler died during initialization", SGLANG, SGLANG[1]),
        ("died with signal 11 (SIGSEGV) in stage engine start and gave no result",
         ["a line", "Fatal Python error: Segmentation fault"], "Fatal Python error: Segmentation fault"),
        ("did not answer within 600 s in stage engine start", ["INFO all is well"], ""),
        ("ValueError: the model is too large", VLLM, ""),
        (WRAPPED, [], ""),
    ],
    ids=["vllm", "later", "sglang", "signal", "hang", "itself", "nothing printed"],
)  # fmt: skip
def test_root(line: str, printed: list[str], root: str) -> None:
    assert root_of(line, printed) == root


def test_known_by_its_playbook() -> None:
    cache = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    assert known_as(["nothing of note", cache]) == "kv-cache-too-small"
    assert known_as(["nothing of note"]) == ""


@pytest.mark.parametrize("words", ["invalid header length", "incomplete metadata, file not fully covered"])
def test_weights_that_were_cut_are_known_by_their_newer_words(words: str) -> None:
    line = f"safetensors._safetensors_rust.SafetensorError: Error while deserializing header: {words}"
    assert known_as([line]) == "weights-file-damaged"
