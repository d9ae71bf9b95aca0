"""Answers in a checkpoint come back as they were, and only to who asks for the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rltrain.controller.saved_answers import FILE, load, save
from rltrain.core.errors import UserError
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Completion, Request

REQUESTS = [Request((1, 2), 11), Request((3,), 12, log_probs=False), Request((4,), 13)]
COMPLETIONS = [
    Completion(int_array([5, 6, 7]), float_array([-0.1, -1e-30, -3.3]), "stop", int_array([1, 2]), ((0, 3),)),
    Completion(int_array([8]), None, "length", int_array(), ((0, 3), (1, 4))),
    Completion(int_array(), float_array(), "stop", int_array([4]), ()),
]


def test_they_come_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 7, REQUESTS, COMPLETIONS)
    found = load(tmp_path)
    assert found is not None
    assert found.step == 7
    for one, other in zip(COMPLETIONS, found.completions, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.prompt_ids, other.prompt_ids)
        assert (one.log_probs is None) == (other.log_probs is None)
        if one.log_probs is not None and other.log_probs is not None:
            assert one.log_probs.tobytes() == other.log_probs.tobytes()
            assert other.log_probs.dtype == np.float32
        assert (one.finish_reason, one.versions) == (other.finish_reason, other.versions)


def test_they_fit_what_they_answer_alone(tmp_path: Path) -> None:
    save(tmp_path, 7, REQUESTS, COMPLETIONS)
    found = load(tmp_path)
    assert found is not None
    assert found.fits(7, REQUESTS)
    assert not found.fits(8, REQUESTS)
    assert not found.fits(7, REQUESTS[:2])
    assert not found.fits(7, [*REQUESTS[:2], Request((4,), 14)])


def test_a_checkpoint_without_them_is_of_another_kind_of_run(tmp_path: Path) -> None:
    assert load(tmp_path) is None


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UserError, match=r"answers.npz cannot be read: .*earlier checkpoint"):
        load(tmp_path)
