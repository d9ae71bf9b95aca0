"""What playbooks offer exists: each variable and option stands in a current release, or is said to be older.

`tests/fixtures/releases.txt` says what stands where; `python -m tests.tools.releases` writes it from the packages.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from packaging.specifiers import SpecifierSet

from rlcheck.playbook import Library
from tests.tools import releases
from tests.tools.releases import OPTION, VARIABLE, Record, offered, signature_texts, texts_of, words_of

LIBRARY = Library()
OLDER = re.compile(
    r"\bolder\b|\bold\b|\bearlier\b|\bbefore (?:v|version )?\d|\bup to \d|\buntil \d|<=? ?\d|\bno longer\b|\bgone\b"
    r"|\bremoved\b|\bdeprecated\b|\bat most \d|\bbelow \d",
    re.I,
)
AGAIN = "run `python -m tests.tools.releases`, which reads the packages again"
ELSEWHERE = {"NCCL_COMM_ID", "NCCL_TIMEOUT", "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "TRITON_PTXAS_BLACKWELL_PATH"}
"""What NCCL reads, what nothing reads and is taken away, what only builds for macOS read, what Triton puts together."""
CITED = {"Memory access fault by GPU node", "No usable temporary directory found", ": unknown key"}
"""Messages of others (ROCm, Python, rltrain) that a package holds by chance."""
MOST_BYTES = 350_000


@cache
def record() -> Record:
    return releases.read()


@pytest.mark.parametrize("playbook_id", LIBRARY.ids())
def test_what_a_playbook_offers_is_in_a_current_release(playbook_id: str) -> None:
    book = LIBRARY.get(playbook_id)
    for text in offered(book):
        for word in words_of(text):
            if word not in record().words and book.verified >= record().date:
                continue  # written after the record
            assert word in record().words, f"{word} is not in {releases.RECORD.name}: {AGAIN}"
            known = record().current(word) or word in ELSEWHERE or OLDER.search(text)
            assert known, f"{word} is in no current release: say which older one has it, or offer what replaces it"


def test_each_text_of_a_signature_was_looked_for() -> None:
    new = {
        text
        for text, books in signature_texts(LIBRARY).items()
        if text not in record().words and any(LIBRARY.get(book).verified < record().date for book in books)
    }
    assert not new, f"not in {releases.RECORD.name}: {sorted(new)}; {AGAIN}"


def test_a_message_that_is_gone_is_said_to_be_older() -> None:
    """A wording that stands in an older release only: look for the new one, and say of which release the old one is."""
    silent: list[str] = []
    for text, books in signature_texts(LIBRARY).items():
        if record().gone(text) and text not in CITED:
            for book in map(LIBRARY.get, books):
                said = book.versions != "any" or OLDER.search(" ".join((book.cause + book.body).split()))
                silent += [] if said else [f"{book.id}: {text!r}, in {record().words[text]}"]
    assert not silent


@pytest.mark.parametrize("playbook_id", [one for one in LIBRARY.ids() if LIBRARY.get(one).versions != "any"])
def test_a_range_of_versions_agrees_with_the_record(playbook_id: str) -> None:
    book = LIBRARY.get(playbook_id)
    assert isinstance(book.versions, dict)
    for signature in book.signatures:
        for text in texts_of(signature.pattern, signature.literal):
            for package, bounds in book.versions.items():
                outside = [v for v in record().words[text].get(package, []) if v not in SpecifierSet(bounds)]
                assert not outside, f"{text!r} is in {package} {', '.join(outside)}, which is not {bounds}"


def test_the_record_is_whole_and_small() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record().date)
    assert set(record().releases) == set(releases.PACKAGES)
    assert all(record().releases.values())
    assert releases.RECORD.stat().st_size <= MOST_BYTES


def test_the_record_knows_what_is_there_and_what_is_not() -> None:
    assert "vllm" in record().current("VLLM_PORT")
    assert "ray" in record().current("--object-store-memory")
    assert not record().current("VLLM_ATTENTION_BACKEND")
    assert not record().current("--swap-space")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("export VLLM_PORT=1", ["VLLM_PORT"]),
        ("all of NCCL_IB_* but NCCL_IB_HCA", ["NCCL_IB_HCA"]),
        ("docker run --gpus all IMAGE; vllm serve --dtype half", ["--dtype"]),
        ("`docker run --ipc=host`, or --enforce-eager", ["--enforce-eager"]),
        ("sbatch --mem=0 job.sh", []),
        ("ray start --head --port=6379", ["--head", "--port"]),
    ],
)
def test_words_are_read_with_their_program(text: str, words: list[str]) -> None:
    assert [*words_of(text)] == words
    assert all(VARIABLE.fullmatch(word) or OPTION.fullmatch(word) for word in words)
