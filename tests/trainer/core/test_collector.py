"""While libraries are imported, nothing is collected; what they leave is not walked again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rltrain.core.collector import collector_off


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Leave the collector as it was."""
    frozen = gc.get_freeze_count()
    yield
    if not frozen:
        gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_in_the_block_and_what_it_made_is_frozen() -> None:
    before = gc.get_freeze_count()
    with collector_off():
        assert not gc.isenabled()
        made = [[number] for number in range(100_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() - before >= len(made)


def test_blocks_within_each_other_leave_it_off_until_the_outer_ends() -> None:
    with collector_off():
        with collector_off():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_in_the_block_turns_it_on_again() -> None:
    with pytest.raises(ModuleNotFoundError), collector_off():
        import no_such_module  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert gc.isenabled()
