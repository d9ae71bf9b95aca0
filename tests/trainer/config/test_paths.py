"""Paths that cannot be used are told from those that are only not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rltrain.config.paths import missing, unusable


def test_a_name_that_is_only_not_there_is_usable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert unusable(tmp_path) is None
    assert unusable(tmp_path / "new") is None
    assert unusable(tmp_path / "file" / "below") is None


@pytest.mark.parametrize(("name", "said"), [("b" * 5000, "File name too long"), ("a\0b", "null")])
def test_a_name_that_no_file_system_takes(name: str, said: str) -> None:
    why = unusable(name)
    assert why is not None
    assert said in why
    assert "\0" not in why
    assert len(why) < 300
    assert missing("data.train_files", name) == f"data.train_files: {why}"


def test_a_directory_that_may_not_be_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "lstat", refuse)  # the tests may run as root, who may enter everything
    assert unusable("/closed/my.yaml") == "the path '/closed/my.yaml' cannot be used: Permission denied"
