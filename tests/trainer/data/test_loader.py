"""The order of the data: a function of seed and epoch, resumed exactly, only on the same data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.baselines import MAX_CANDIDATES, MAX_ROWS, best_constant_answer, shuffled_pairing
from rltrain.data.dataset import Dataset, build_dataset
from rltrain.data.loader import PromptLoader, to_prompt_batch
from rltrain.data.schema import Row
from tests.trainer.data.build import jsonl, numbered, row, tokenizer


def build(*paths: Path, **config: Any) -> Dataset:
    return build_dataset(tuple(str(path) for path in paths), DataConfig(**config), tokenizer(), "train")


def loader(path: Path, batch_size: int = 4, seed: int = 1, shuffle: bool = True) -> PromptLoader:
    return PromptLoader(build(path), batch_size, seed, shuffle)


def take(source: PromptLoader, count: int) -> list[list[str]]:
    return [[r.uid for r in next(source)] for _ in range(count)]


def test_epochs_are_permutations_and_the_rest_is_dropped(tmp_path: Path) -> None:
    source = loader(numbered(tmp_path / "a.jsonl", 11))
    assert (source.num_steps_per_epoch, source.num_dropped_per_epoch) == (2, 3)
    assert source.line() == "2 steps of 4 prompts an epoch, 3 rows that fill no batch dropped in each"
    uids = [uid for batch in take(source, 6) for uid in batch]
    assert len(set(uids)) == 24
    epochs = [[uid.split("-")[1] for uid in uids if uid.startswith(f"{epoch}-")] for epoch in range(3)]
    assert [len(set(epoch)) for epoch in epochs] == [8, 8, 8]
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_that_of_seed_and_epoch(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.jsonl", 40)
    assert take(loader(path), 30) == take(loader(path), 30)
    assert take(loader(path), 10) != take(loader(path, seed=2), 10)
    indices = [[uid.split("-")[1] for batch in take(loader(path, seed=s), 20) for uid in batch] for s in (1, 2)]
    assert indices[0][40:] != indices[1][:40]


def test_unshuffled_keeps_the_files_order(tmp_path: Path) -> None:
    source = loader(numbered(tmp_path / "a.jsonl", 8), shuffle=False)
    assert take(source, 3) == [
        [f"0-{i}" for i in range(4)],
        [f"0-{i}" for i in range(4, 8)],
        [f"1-{i}" for i in range(4)],
    ]


def test_too_few_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 3 rows, fewer than one batch of 4; lower data\.train_batch_size"):
        loader(numbered(tmp_path / "a.jsonl", 3))
    assert loader(numbered(tmp_path / "a.jsonl", 4)).num_dropped_per_epoch == 0


@settings(max_examples=25, deadline=None)
@given(stop=st.integers(0, 12), rest=st.integers(1, 8), batch_size=st.integers(1, 11), shuffle=st.booleans())
def test_resume_anywhere_equals_never_having_stopped(
    tmp_path_factory: pytest.TempPathFactory, stop: int, rest: int, batch_size: int, shuffle: bool
) -> None:
    path = numbered(tmp_path_factory.mktemp("d") / "a.jsonl", 11)
    whole = take(loader(path, batch_size, shuffle=shuffle), stop + rest)
    first = loader(path, batch_size, shuffle=shuffle)
    take(first, stop)
    state = json.loads(json.dumps(first.state_dict()))
    second = loader(path, batch_size, shuffle=shuffle)
    second.load_state_dict(state)
    assert take(second, rest) == whole[stop:]


def test_resume_on_changed_data_names_the_file(tmp_path: Path) -> None:
    a, b = numbered(tmp_path / "a.jsonl", 4), numbered(tmp_path / "b.jsonl", 4)
    state = PromptLoader(build(a, b), 4, 1, True).state_dict()
    jsonl(b, *(row(f"copy {i:04d}", "0000" if i == 2 else f"{i:04d}") for i in range(4)))
    with pytest.raises(UserError, match=r"b\.jsonl changed since the run stopped \(4 rows then, 4 now\)"):
        PromptLoader(build(a, b), 4, 1, True).load_state_dict(state)
    with pytest.raises(UserError, match="had 2 data files when it stopped and has 1 now"):
        PromptLoader(build(a), 4, 1, True).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": [{"role": "user", "content": "copy 9"}]},
        {"reward_model": {"ground_truth": "9"}},
        {"data_source": "other"},
        {"extra_info": {"split": "other"}},
    ],
)
def test_the_mark_covers_all_that_training_reads(tmp_path: Path, change: dict[str, Any]) -> None:
    before = build(jsonl(tmp_path / "a.jsonl", row()))
    assert build(jsonl(tmp_path / "a.jsonl", row(unused=1))).files == before.files
    assert build(jsonl(tmp_path / "a.jsonl", {**row(), **change})).files != before.files


def test_the_same_data_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    state = loader(numbered(tmp_path / "a.jsonl", 8)).state_dict()
    moved = loader(numbered(tmp_path / "moved.jsonl", 8))
    moved.load_state_dict(state)
    assert take(moved, 2) == take(loader(tmp_path / "a.jsonl"), 2)


@pytest.mark.parametrize(
    ("key", "changed"),
    [("data.train_batch_size", {"batch_size": 2}), ("data.seed", {"seed": 2}), ("data.shuffle", {"shuffle": False})],
)
def test_resume_with_another_order(tmp_path: Path, key: str, changed: dict[str, Any]) -> None:
    path = numbered(tmp_path / "a.jsonl", 8)
    with pytest.raises(UserError, match=rf"{key} was .* when the run stopped and is .* now"):
        loader(path, **changed).load_state_dict(loader(path).state_dict())


def test_a_file_that_changes_or_vanishes_while_the_run_is_on_does_not_matter(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.jsonl", 8)
    undisturbed, source = loader(path), loader(path)
    expected = [next(undisturbed) for _ in range(6)]
    got = [next(source) for _ in range(2)]
    path.write_text("broken")
    got += [next(source) for _ in range(2)]
    path.unlink()
    assert got + [next(source) for _ in range(2)] == expected


def test_prompt_batch(tmp_path: Path) -> None:
    rows = next(loader(numbered(tmp_path / "a.jsonl", 4)))
    batch = to_prompt_batch(rows)
    assert (len(batch), batch.names) == (4, set())
    for sample, one in zip(batch.samples, rows, strict=True):
        assert (sample.uid, sample.index, sample.prompt_ids) == (one.uid, one.index, one.prompt_ids)
        assert (sample.ground_truth, sample.data_source) == (one.ground_truth, one.data_source)
        assert (sample.prompt_text, sample.messages, sample.extra_info) == (
            one.prompt_text, one.messages, one.extra_info,
        )  # fmt: skip


def digits_right(answers: Any, rows: Any) -> list[float]:
    pairs = zip(answers, (r.ground_truth for r in rows), strict=True)
    return [sum(x == y for x, y in zip(a, t, strict=False)) / max(len(a), len(t)) for a, t in pairs]


def truths(*answers: str) -> list[Row]:
    return [Row(i, (), "", (1,), "", answer) for i, answer in enumerate(answers)]


def test_best_constant_answer() -> None:
    rows = truths("12", "13", "42", "93")
    assert best_constant_answer(rows, digits_right) == ("12", 0.5)
    # No truth itself, but two right digits in each of three.
    assert best_constant_answer(truths("120", "103", "023"), digits_right) == ("123", pytest.approx(2 / 3))
    # Under all or nothing, the commonest answer is the best.
    exact = best_constant_answer(
        truths("7", "55", "55", "8"), lambda a, rows: [float(x == r.ground_truth) for x, r in zip(a, rows, strict=True)]
    )
    assert exact == ("55", 0.5)


@pytest.mark.parametrize("longest", [40, 900])
def test_best_constant_answer_is_found_with_few_rewards(longest: int) -> None:
    rows = truths(*(f"{i:04d}" + "x" * (i % longest) for i in range(1000)))
    scored: list[tuple[str, int]] = []

    def all_right(answers: Any, rows: Any) -> list[float]:
        scored.extend(zip(answers, (row.index for row in rows), strict=True))
        return [1.0] * len(answers)

    assert best_constant_answer(rows, all_right)[1] == 1.0
    assert 0 < len(scored) <= MAX_CANDIDATES * MAX_ROWS < len(rows) * 4
    assert len({index for _, index in scored}) == MAX_ROWS, "each answer is scored on the same rows"
    before = list(scored)
    scored.clear()
    best_constant_answer(rows, all_right)
    assert scored == before


def test_best_constant_answer_of_long_truths_is_the_commonest() -> None:
    rows = truths(*("x" * (100 + i) for i in range(30)), *["y" * 5000] * 3)
    exact = best_constant_answer(
        rows, lambda a, rows: [float(x == r.ground_truth) for x, r in zip(a, rows, strict=True)]
    )
    assert exact == ("y" * 5000, pytest.approx(3 / 33))


@given(size=st.integers(2, 60), seed=st.integers(0, 5))
def test_shuffled_pairing_leaves_nobody_alone(size: int, seed: int) -> None:
    pairing = shuffled_pairing(size, seed)
    assert sorted(pairing) == list(range(size))
    assert all(i != other for i, other in enumerate(pairing))
    assert pairing == shuffled_pairing(size, seed)


def test_one_row_cannot_be_shuffled() -> None:
    with pytest.raises(ValueError, match="1 rows cannot be paired"):
        shuffled_pairing(1, 0)
