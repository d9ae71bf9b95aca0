"""What is found in rows, with its place; and that whatever rltrain refuses is found."""

from __future__ import annotations

import pytest

from rlcheck.facts.config import RewardSpec
from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.readers import read_file
from rltrain.data.schema import check_row
from rltrain.rewards.coverage import check_rows
from rltrain.rewards.rules import needs_truth
from rltrain.rewards.spec import RuleSpec, ScorerSpec
from tests.measure.data.files import config, found, kinds, lines, row, say, truth

BAD = {
    "json": '{"prompt": [}',
    "no_object": "[1, 2]",
    "double_key": '{"prompt": "a", "prompt": "b"}',
    "utf8": b'{"prompt": "caf\xe9"}',
    "nul": row(prompt=say("a\0b")),
    "half_pair": '{"prompt": "a\\ud83d", "data_source": "sums", "ground_truth": "1"}',
    "prompt_missing": row(prompt="LEFT OUT"),
    "prompt_null": row(prompt=None),
    "prompt_type": row(prompt=3),
    "prompt_empty": row(prompt=" \n"),
    "message_form": row(prompt=[{"from": "human", "value": "hello"}]),
    "message_role": row(prompt=[{"role": "human", "content": "hello"}]),
    "message_empty": row(prompt=say("  ")),
    "last_assistant": row(prompt=[*say("hello"), {"role": "assistant", "content": "yes"}]),
    "source_missing": row(data_source="LEFT OUT"),
    "source_form": row(data_source=" "),
    "source_unscored": row(data_source="other"),
    "truth_missing": row(reward_model="LEFT OUT"),
    "truth_form": row(reward_model="42"),
    "truth_unusable": row(**truth(["42"])),
    "not_finite_used": '{"prompt": "a", "data_source": "sums", "ground_truth": "1", "extra_info": {"x": NaN}}',
    "extra_form": row(extra_info=[1]),
}
RULES = ({"kind": "exact", "data_sources": ["sums"]},)


@pytest.fixture(scope="module")
def bad_rows(tmp_path_factory: pytest.TempPathFactory):
    """A file in which good and bad rows take turns, and what was found in it."""
    path = lines(tmp_path_factory.mktemp("rows") / "rows.jsonl", *(r for bad in BAD.values() for r in (row(1), bad)))
    return path, found(path, run=config(rules=RULES))


@pytest.mark.row("F30")
@pytest.mark.parametrize("kind", BAD)
def test_each_kind_is_found_in_its_line(kind: str, bad_rows) -> None:
    path, facts = bad_rows
    trouble = facts.trouble(kind)
    line = 2 * list(BAD).index(kind) + 2
    assert trouble.count == 1
    assert (trouble.spots[0].file, trouble.spots[0].line) == (str(path), line)
    assert trouble.spots[0].place.startswith(f"{path}:{line}")


@pytest.mark.row("F30")
@pytest.mark.parametrize("kind", [k for k in BAD if k not in ("source_unscored", "truth_missing", "truth_unusable")])
def test_rltrain_refuses_the_same_rows(kind: str, tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", BAD[kind])
    with pytest.raises(UserError):
        [check_row(raw, DataConfig(), "train") for raw in read_file(path)]


@pytest.mark.parametrize("kind", ["exact", "digits", "gsm8k", "regex"])
@pytest.mark.parametrize("value", ["1,234", "", " ", 12, True, None, {"a": 1}, "x", "#### 5"], ids=repr)
def test_ground_truths_as_the_rules_of_rltrain_take_them(kind: str, value: object, tmp_path) -> None:
    """A fault that ends a run is found as such; what the rules take is none."""
    path = lines(tmp_path / "rows.jsonl", row(**truth(value)))
    rule = RuleSpec(kind, kind, pattern="a(.)")
    assert needs_truth(rule)
    refused = False
    try:
        checked = [check_row(raw, DataConfig(), "train") for raw in read_file(path)]
        check_rows([_as_row(one) for one in checked], ScorerSpec((rule,)), model_scores=False)
    except UserError:
        refused = True
    facts = found(path, run=config(rules=({"kind": kind, "pattern": "a(.)"},)))
    assert bool({"truth_missing", "truth_unusable"} & set(kinds(facts))) == refused


def _as_row(checked):
    from rltrain.data.schema import Row

    return Row(0, checked.messages, "", (), checked.data_source, checked.ground_truth, place=checked.raw.place)


def test_a_clean_file_has_no_troubles(tmp_path) -> None:
    odd = row(5, prompt=[{"role": "system", "content": ""}, *say("Grüße 🙂\tund\nmehr")])
    gsm8k = {"question": "How many?", "answer": "Two and two. #### 4"}
    path = lines(tmp_path / "rows.jsonl", row(1), "", odd, row(3, extra_info={"a": [1.5, None]}), gsm8k)
    facts = found(path, run=config())
    assert kinds(facts) == {}
    assert (facts.files[0].num_rows, facts.files[0].num_blank) == (4, 1)
    assert facts.sources["train"] == {"sums": 3, "openai/gsm8k": 1}


def test_gsm8k_answers_that_nothing_equals(tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1), row(2, **truth("about five")), row(3, **truth("$1,200")))
    assert kinds(found(path, run=config(rules=({"kind": "gsm8k"},)))) == {"truth_never": 1}


def test_mathematics_is_read_by_math_verify(tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1, **truth(r"\frac{1}{2}")), row(2, **truth("12")), row(3, **truth(" ")))
    assert kinds(found(path, run=config(rules=({"kind": "math"},)))) == {"truth_unusable": 1}


VERL = {
    "openai/gsm8k": ("12", "1,200", "truth_never"),
    "math_dapo": ("12", 12, "truth_unusable"),
    "aime2024": ("12", 12, "truth_unusable"),
    "codeforces": ('{"inputs": ["1"], "outputs": ["2"]}', "print(2)", "truth_never"),
    "searchR1_nq": ({"target": ["Rome"]}, "Rome", "truth_unusable"),
    "my/own": (None, "12", "source_unscored"),
}


@pytest.mark.parametrize("source", VERL)
def test_verl_dispatches_by_source(source: str, tmp_path) -> None:
    good, bad, kind = VERL[source]
    path = lines(tmp_path / "rows.jsonl", row(1, data_source=source, **truth(bad)))
    assert kinds(found(path, run=config("verl"))) == {kind: 1}
    if good is not None:
        assert kinds(found(lines(path, row(1, data_source=source, **truth(good))), run=config("verl"))) == {}


def test_verl_reads_the_ground_truth_from_one_place(tmp_path) -> None:
    plain = row(1, data_source="openai/gsm8k", reward_model="LEFT OUT", ground_truth="2")
    assert kinds(found(lines(tmp_path / "rows.jsonl", plain), run=config("verl"))) == {"truth_missing": 1}


def test_a_function_of_ones_own_takes_any_truth(tmp_path) -> None:
    import msgspec

    run = config("verl")
    own = msgspec.structs.replace(run.spec, reward=RewardSpec(function_path="/own/reward.py"))
    path = lines(tmp_path / "rows.jsonl", row(1, data_source="my/own", **truth({"a": [1]})))
    assert kinds(found(path, run=msgspec.structs.replace(run, spec=own))) == {}


def test_the_first_few_of_each_kind_in_order(tmp_path) -> None:
    paths = [lines(tmp_path / f"{name}.jsonl", *["{"] * 4) for name in ("b", "a")]
    trouble = found(*paths).trouble("json")
    assert trouble.count == 8
    assert [spot.place for spot in trouble.spots] == [
        *(f"{paths[0]}:{line}:column 2" for line in (1, 2, 3, 4)),
        f"{paths[1]}:1:column 2",
    ]


def test_columns_of_several_types(tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1, x=1), row(2, x="one"), row(3))
    column = {column.name: column for column in found(path).files[0].columns}["x"]
    assert (column.kinds, column.missing) == ({"integer": 1, "text": 1}, 1)
    assert column.odd["missing"].line == 3


def test_roles_in_an_order_that_templates_refuse(tmp_path) -> None:
    path = lines(
        tmp_path / "rows.jsonl",
        row(1, prompt=[*say("a"), {"role": "assistant", "content": "b"}, *say("c")]),
        row(2, prompt=[*say("a"), *say("b")]),
        row(3, prompt=[*say("a"), {"role": "system", "content": "b"}]),
    )
    facts = found(path, run=config())
    assert kinds(facts) == {"role_order": 2}
    assert facts.counts["multi_turn"] == 1


def test_keys_are_guessed_without_a_config(tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", {"problem": "1 + 1", "answer": "2", "source": "web"}, {"problem": " "})
    facts = found(path)
    assert (facts.asked.prompt_key, facts.asked.truth_key, facts.asked.source_key) == ("problem", "answer", "source")
    assert kinds(facts) == {"prompt_empty": 1, "truth_missing": 1}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}


@pytest.mark.parametrize(
    "messages",
    [
        [*say("a"), {**CALL, "content": "b"}, *say("c")],
        [*say("a"), {"role": "tool", "content": " "}],
        [*say("a"), CALL],
    ],
)
def test_rltrain_refuses_what_else_messages_have(messages: list, tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1, prompt=messages))
    with pytest.raises(UserError):
        [check_row(raw, DataConfig(), "train") for raw in read_file(path)]
    assert set(kinds(found(path, run=config()))) & {"message_form", "message_empty", "last_assistant"}


def test_tool_calls_and_parts_are_part_of_a_prompt(tmp_path) -> None:
    """Two prompts that differ in nothing else are two."""
    other = {**CALL, "tool_calls": [{"function": {"name": "g"}}]}
    parts = [[{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image", "image": name}]}]
             for name in ("a.png", "b.png")]  # fmt: skip
    prompts = [[*say("a"), CALL, *say("c")], [*say("a"), other, *say("c")], *parts]
    facts = found(lines(tmp_path / "rows.jsonl", *(row(n, prompt=p) for n, p in enumerate(prompts))))
    assert kinds(facts) == {}
    assert facts.counts["unmeasured"] == 2


def test_newer_roles_are_other_frameworks_own(tmp_path) -> None:
    asked = [{"role": "developer", "content": "be brief"}, *say("a")]
    path = lines(tmp_path / "rows.jsonl", row(1, prompt=asked, data_source="openai/gsm8k"))
    assert kinds(found(path, run=config("verl"))) == {}
    assert "message_role" in kinds(found(path, run=config()))


REAL = {
    "gsm8k": row(1, data_source="openai/gsm8k", ability="math", extra_info={"index": 1, "answer": "#### 2"}),
    "math": row(1, data_source="DigitalLearningGmbH/MATH-lighteval", **truth("\\frac{1}{2}")),
    "dapo": row(1, data_source="math_dapo", ability="MATH", extra_info={"index": "9a9b-6eb4"},
                reward_model={"style": "rule-lighteval/MATH_v2", "ground_truth": "34"}),
    "aime": row(1, data_source="aime24", extra_info={"index": 0, "raw_problem": "x"}),
}  # fmt: skip
OTHERS = {
    "gsm8k": {"question": "How many?", "answer": "Two and two.\n#### 1,000"},
    "trl": {"prompt": "How many?", "completion": " four"},
    "trl chat": {"prompt": say("How many?"), "completion": [{"role": "assistant", "content": "four"}]},
    "trl messages": {"messages": [*say("How many?"), {"role": "assistant", "content": "four"}]},
    "openrlhf": {"context_messages": say("How many?"), "label": "4"},
    "openrlhf text": {"input": "How many?", "output": "four", "datasource": "web"},
}


@pytest.mark.parametrize("name", REAL)
def test_what_verl_prepares_is_taken_by_verl(name: str, tmp_path) -> None:
    assert kinds(found(lines(tmp_path / "rows.jsonl", REAL[name]), run=config("verl"))) == {}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tools_rows_alone_have_no_faults(name: str, tmp_path) -> None:
    facts = found(lines(tmp_path / "rows.jsonl", OTHERS[name]))
    assert set(kinds(facts)) <= {"last_assistant"}
    assert facts.asked.prompt_key in OTHERS[name]


def test_a_column_that_looks_like_the_one_that_is_missing(tmp_path) -> None:
    facts = found(lines(tmp_path / "rows.jsonl", {"problem": "1 + 1", "source": "web"}), run=config("verl"))
    assert facts.asked.likely == {"prompt_key": "problem", "source_key": "source"}
