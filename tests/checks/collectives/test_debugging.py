"""Logging, and torch's handling of failed collectives (false cures of the field notes)."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.nccl import DebugFile
from tests.checks.collectives.cases import CASES, ncl
from tests.checks.network.judging import judge

GOOD = "/tmp/nccl.%h.%p.log"


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NCL019", "warn", "NCCL_DEBUG=TRACE"),
        ("NCL020", "warn", "no %p in the name, so processes overwrite one file; 1 MiB free in /scratch"),
        ("NCL021", "warn", "NCCL_ASYNC_ERROR_HANDLING=0"),
        ("NCL022", "info", "TORCH_NCCL_TRACE_BUFFER_SIZE=0"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({"NCCL_DEBUG": "INFO"}, "info"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}, "warn"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "init, coll"}, "warn"),
        ({"NCCL_DEBUG": "NONE"}, "info"),
        ({"NCCL_DEBUG": "VERSION"}, "pass"),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, "pass"),
    ],
)
def test_log_levels(env: dict[str, str], status: str) -> None:
    assert judge("NCL019", ncl(env)).status == status


@pytest.mark.parametrize(
    ("path", "status"),
    [("/dev/stderr", "skip"), ("~/nccl.%h.%p", "warn"), (GOOD, "pass"), ("", "skip")],
)
def test_log_file_names(path: str, status: str) -> None:
    assert judge("NCL020", ncl({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": path})).status == status


def test_log_file_without_a_level_writes_nothing() -> None:
    assert judge("NCL020", ncl({"NCCL_DEBUG_FILE": GOOD})).status == "info"


def test_directory_that_cannot_be_written() -> None:
    file = DebugFile(path=GOOD, directory="/tmp", writable=known(False), free_bytes=known(1 << 40))
    finding = judge("NCL020", ncl({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": GOOD}, debug_file=known(file)))
    assert finding.status == "warn"
    assert "missing or not writable" in finding.message


def test_file_system_that_did_not_answer_is_not_held_against_the_name() -> None:
    late = missing(MissingKind.TIMEOUT, "did not answer")
    file = DebugFile(path=GOOD, directory="/nfs", writable=late, free_bytes=late)
    assert (
        judge("NCL020", ncl({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": GOOD}, debug_file=known(file))).status == "pass"
    )


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, "warn"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_ASYNC_ERROR_HANDLING": "0"}, "pass"),
        ({"TORCH_NCCL_ENABLE_MONITORING": "false"}, "warn"),
        ({"NCCL_BLOCKING_WAIT": "1"}, "info"),
        ({}, "pass"),
    ],
)
def test_error_handling(env: dict[str, str], status: str) -> None:
    assert judge("NCL021", ncl(env)).status == status


@pytest.mark.parametrize(
    ("env", "status"), [({"TORCH_FR_BUFFER_SIZE": "0"}, "info"), ({"TORCH_FR_BUFFER_SIZE": "x"}, "pass")]
)
def test_flight_recorder(env: dict[str, str], status: str) -> None:
    assert judge("NCL022", ncl(env)).status == status
