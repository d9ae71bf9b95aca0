"""What the pages claim: their commands parse, their output is real, their keys exist, their links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from rlcheck.cli.app import make_app
from rltrain.cli.app import app
from rltrain.config import Machine, load, names, resolve
from rltrain.config.load import load_sft
from rltrain.config.rules import RULES
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from tests.conftest import base_environ, in_terminal
from tests.tools.pages import PAGES, ROOT, Block, blocks, commands, slug

GIVEN = ("data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m")
# Files of the user's own, in examples.
OWN_CONFIGS = ("my.yaml", "CONFIG")
# Named like a key, but a field of a data row.
COLUMNS_OF_DATA = {"reward_model.ground_truth"}
MISTAKES_ON_PURPOSE = {"actor_rollout_ref.actor.clip_ration"}
SECTIONS = {name.rsplit(".", 1)[-1] for name in names.sections()}
PROGRAM = (sys.executable, "-m", "rltrain")


def _calls(program: str) -> list[tuple[str, list[str]]]:
    """Every call of the program on a page: where it stands, and its words, what launches it left out."""
    found = [(str(block), _words(line)) for block in blocks("bash") for line in commands(block)]
    found += [(str(block), _words(block.text.splitlines()[0].removeprefix("$ "))) for block in blocks("console")]
    inline = [
        (str(page.relative_to(ROOT)), _words(code))
        for page in PAGES
        for code in re.findall(rf"`({program} [a-z]+ [^`…]+)`", page.read_text(encoding="utf-8"))
        if not (program == "rlcheck" and code.split()[-1].startswith("--"))  # an option that is spoken of
    ]
    return [(place, call) for place, words in [*found, *inline] if len(call := _from_program(words, program)) > 1]


def _words(line: str) -> list[str]:
    return shlex.split(re.split(r" (?:\|\||&&|\|) ", line)[0])


def _from_program(words: list[str], program: str) -> list[str]:
    places = [number for number, word in enumerate(words) if word.rpartition("/")[2] == program]
    return words[places[0] :] if places else []


CALLS = [call for call in _calls("rltrain") if call[1][1] in ("run", "sft", "eval", "export", "init")]
DOCTOR_CALLS = _calls("rlcheck")
REFUSED = [
    shlex.split(block.text.splitlines()[0].removeprefix("$ "))
    for block in blocks("console")
    if "\nrltrain: " in block.text
]


def test_there_are_calls_to_look_at() -> None:
    assert len(CALLS) > 25
    assert len(DOCTOR_CALLS) > 40


@pytest.mark.parametrize(
    ("place", "words"), DOCTOR_CALLS, ids=[f"{place} {' '.join(words[1:])}" for place, words in DOCTOR_CALLS]
)
def test_commands_of_the_doctor_are_understood(place: str, words: list[str]) -> None:
    """Its options are parsed by the command itself."""
    command = get_command(make_app()).commands[words[1]]  # type: ignore[attr-defined]
    command.make_context(words[1], list(words[2:]))


@pytest.mark.parametrize(("place", "words"), CALLS, ids=[f"{place} {' '.join(words[1:])}" for place, words in CALLS])
def test_commands_on_the_pages_are_understood(place: str, words: list[str], tmp_path: Path) -> None:
    """Options and arguments are parsed by the command itself; configs are loaded, and of the toys every rule holds."""
    group = get_command(app)
    command = group.commands[words[1]]  # type: ignore[attr-defined]
    context = command.make_context(words[1], list(words[2:]))
    if words[1] == "sft":
        load_sft("toy-sft" if words[2] in OWN_CONFIGS else words[2], context.params["overrides"] or ())
    if words[1] != "run":
        return
    given = [one for one in GIVEN if not words[2].startswith("toy")]
    source = "gsm8k-grpo" if words[2] in OWN_CONFIGS else words[2]
    config = load(source, [*given, *(context.params["overrides"] or ())])
    if source.startswith("toy") and words not in REFUSED:
        broken = [problem for rule in RULES for problem in rule(resolve(config, Machine("cpu", 0, 2)))]
        assert [problem for problem in broken if "no such file" not in problem] == []


@pytest.mark.parametrize("block", blocks("console"), ids=str)
def test_output_on_the_pages_is_real(block: Block, tmp_path: Path) -> None:
    """Each shown line comes out of the command, in this order and without a gap."""
    call, *shown = block.text.splitlines()
    if call.startswith("$ rlcheck "):
        done = in_terminal(*shlex.split(call.removeprefix("$ rlcheck ")), columns=80, env={"NO_COLOR": "1"})
        assert "\n".join(shown) in done.out
        return
    environ = base_environ({"CUDA_VISIBLE_DEVICES": ""})
    done = subprocess.run(
        [*PROGRAM, *shlex.split(call.removeprefix("$ rltrain "))],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "\n".join(shown) in done.stdout + done.stderr


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
@pytest.mark.parametrize("recipe", ["gsm8k-grpo", "gsm8k-ppo"])
def test_config_lines_on_the_pages_load(block: Block, recipe: str, tmp_path: Path) -> None:
    """Each block over a recipe gives a config."""
    base = yaml.safe_load((ROOT / "trainer" / "rltrain" / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8"))
    file = tmp_path / "merged.yaml"
    file.write_text(yaml.safe_dump(_merged(base, yaml.safe_load(block.text))))
    load(file, GIVEN)


def _merged(base: dict, over: dict) -> dict:
    both = {name: _merged(base[name], over[name]) for name in base.keys() & over.keys() if isinstance(over[name], dict)}
    return {**base, **over, **both}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_keys_named_on_the_pages_exist(page: Path) -> None:
    """Dotted names in code that begin with a section: whole keys, or their ends (`rollout.n`, `actor.clip_ratio`)."""
    code = "\n".join("".join(found) for found in re.findall(r"```\w+\n(.*?)```|`([^`\n]+)`", _text(page), re.S))
    dotted = set(re.findall(r"(?<![\w./$\-])([a-z]\w*(?:\.[a-z_]\w*)+)(?![\w(/])", code))
    files = re.compile(r"\.(md|py|yaml|json|jsonl|parquet|toml|txt|sh|log|safetensors)$")
    keys = {
        key
        for key in dotted - COLUMNS_OF_DATA - MISTAKES_ON_PURPOSE
        if key.split(".")[0] in SECTIONS and not files.search(key)
    }
    unknown = sorted(key for key in keys if not _is_key(key))
    assert not unknown


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _is_key(key: str) -> bool:
    if any(key in words.sections() or words.leaf_above(key) is not None for words in (names.RUN, names.SFT)):
        return True
    whole = (*names.leaves(), *names.sections())
    return any(f".{name}".endswith(f".{key}") for name in whole)


def test_the_check_of_keys_can_fail() -> None:
    assert _is_key("rollout.n")
    assert _is_key("toy.model.hidden_size")
    assert not _is_key("rollout.nn")
    assert not _is_key("data.train_file")
    assert "trainer" in RunConfig.model_fields


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_heading(page: Path) -> None:
    """That the files exist, `tests/architecture` checks; here: that the part behind # does."""
    lost = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", _text(page)):
        if "://" in target:
            continue
        text = _text((page.parent / target).resolve() if target else page)
        headings = {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}
        if anchor not in headings | set(re.findall(r'<a id="([^"]+)">', text)):
            lost.append(f"{target}#{anchor}")
    assert not lost


def test_every_page_of_the_trainer_is_reachable_from_the_readme() -> None:
    readme = _text(ROOT / "README.md")
    assert not [
        page.name for page in (ROOT / "docs" / "trainer").glob("*.md") if f"docs/trainer/{page.name}" not in readme
    ]


def test_numbers_of_the_readme_are_those_of_the_recorded_run() -> None:
    """What is said of the run in the picture; `tests.tools.run_picture` says how to record another."""
    recorded = ROOT / "docs" / "pictures" / "toy-ppo"
    steps = [json.loads(line) for line in _text(recorded / "metrics.jsonl").splitlines()]
    words = " ".join(_text(ROOT / "README.md").split())
    said = re.search(r"prompts went from (\S+) to (\S+) in (\d+) steps and (\d+) seconds", words)
    assert said is not None
    first, last = steps[0]["val/reward/mean"], steps[-1]["val/reward/mean"]
    seconds = re.search(r"finished \d+ steps in (\d+) s", _text(recorded / "end.txt"))
    assert seconds is not None
    assert said.groups() == (f"{first:.2f}", f"{last:.2f}", str(steps[-1]["step"]), seconds[1])
    for name, words_of_it in (("best_constant", "ignores its prompt earns"), ("shuffled", "answers to other prompts")):
        assert f"{words_of_it} {steps[-1][f'val/reward/{name}']:.2f} (`val/reward/{name}`)" in words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_checkpoints_of_the_toy_are_those_that_it_makes(page: Path) -> None:
    last = load("toy-ppo").trainer.total_training_steps
    assert set(re.findall(r"toy-ppo/checkpoints/global_step_(\d+)", _text(page))) <= {str(last)}


@pytest.mark.row("F59")
def test_messages_named_under_debugging_are_those_of_the_code() -> None:
    """The words of each message (between the … of what changes) are in one string of the trainer's or the doctor's."""
    files = [*(ROOT / "trainer").rglob("*.py"), *(ROOT / "rlcheck" / "measure" / "config").glob("*.py")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    joined = re.sub(r'"\s*\n\s*(?:#[^\n]*\n\s*)*f?"', "", sources)
    text = _text(ROOT / "docs" / "trainer" / "debugging.md").partition("## Messages")[2]
    cells = re.findall(r"^\| (`.+?) \|", text, re.M)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 30
    parts = [part.strip() for message in messages for part in message.split("…") if part.strip()]
    assert [part for part in parts if part not in joined] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_say_nothing_of_the_machine_that_they_were_written_on(page: Path) -> None:
    text = _text(page)
    assert not re.search(r"(?<![\w.])/(work|tmp/\w|root|home/\w)", text)
    assert os.uname().nodename not in re.findall(r"[\w.\-]+", text)


def test_a_command_that_is_wrong_would_be_found() -> None:
    with pytest.raises(UserError):
        load("toy-ppo", ["trainer.seeed=7"])
