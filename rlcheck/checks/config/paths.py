"""Files that the run reads, directories that it writes, and the function that scores."""

from __future__ import annotations

from difflib import get_close_matches

from rlcheck.check import Verdict, check, passed, skip, unknown
from rlcheck.checks.config.roles import is_remote
from rlcheck.checks.config.say import Case, conclude, config_of, unclear
from rlcheck.facts.base import why_missing
from rlcheck.facts.config import ConfigFacts, PathFacts
from rlcheck.facts.document import Facts

_WRITTEN = ("default_local_dir", "rollout_data_dir", "validation_data_dir", "run_dir")
_MODELS = (".path", ".model_path")
_WANTED = {"file": "a file", "directory": "a directory", "either": "a file or directory"}


@check("CFG065", "The files that the run reads exist", needs=("config",), playbook="run-paths",
       problem="A file that the run reads is missing")  # fmt: skip
def files_exist(facts: Facts) -> Verdict:
    """Looks for every file that the config names, and says where it looked.

    What it does:
        Shows the resolved path, points out Windows separators and a `~` that is not expanded, and a trailing slash,
        which verl refuses. What is on another file system (hdfs://) is unknown. Models are judged by CFG030.

    Why it matters:
        Data are opened after the workers have started, a reward file when the first batch is scored.
    """
    run = config_of(facts)
    read = [path for path in run.paths if not path.key.endswith(_WRITTEN)]
    cases = [case for path in read if (case := _absent(path)) is not None]
    cases += [case for path in read if (case := _refused(run, path)) is not None]
    blind = [path.given for path in read if not path.looked]
    if not cases and blind:
        return unknown(f"not looked for: {', '.join(blind[:3])}")
    return conclude(run, cases, f"{len(read)} there" if read else "none is named")


def _is_model(path: PathFacts) -> bool:
    return path.key.endswith(_MODELS) and "model" in path.key


def _absent(path: PathFacts) -> Case | None:
    if _is_model(path) or not path.looked or (path.exists and not path.problem):
        return None
    hints = [
        "; `\\` separates nothing here" if "\\" in path.given else "",
        "; it is relative to the directory from which the run is started" if path.given[:1] not in "/~\\" else "",
    ]
    shown = path.given if path.resolved in ("", path.given) else f"{path.given} ({path.resolved})"
    problem = path.problem or "is not there"
    want = _WANTED.get(path.want, path.want)
    return Case("fail", path.key, f"{want} that can be read", f"{shown}: {problem}{''.join(hints)}")


def _refused(run: ConfigFacts, path: PathFacts) -> Case | None:
    """Spellings that verl does not take, whatever is there."""
    if run.framework != "verl" or not path.given or is_remote(path.given):
        return None
    if not _is_model(path) and not path.key.startswith("data.") and not path.key.endswith(".tokenizer_path"):
        return None
    if path.given.endswith("/"):
        stripped = path.given.rstrip("/") or "/"
        return Case(
            "fail", path.key, "a path without a slash at its end", f"{path.given}, which verl refuses", to=stripped
        )
    if path.given.startswith("~") and path.looked and path.exists and _is_model(path):
        found = f"{path.given}: verl does not expand ~ in the paths of models"
        return Case("fail", path.key, "the whole path", found, to=path.resolved or None)
    return None


@check("CFG066", "The run can write its files", needs=("config",), playbook="run-paths",
       problem="The run cannot write its files")  # fmt: skip
def outputs_writable(facts: Facts) -> Verdict:
    """Looks whether the directories for checkpoints and samples can be made and written.

    What it does:
        Tests the nearest directory that exists on the way to each of them.

    Why it matters:
        The first checkpoint is written after hours; then the run dies with nothing to go on from.
    """
    run = config_of(facts)
    written = [path for path in run.paths if path.key.endswith(_WRITTEN)]
    if not written:
        return skip("the config names no directory to write to")
    cases = [
        Case("fail", path.key, "a directory that can be written", f"{path.resolved or path.given}: {path.problem}")
        for path in written if path.looked and path.problem
    ]  # fmt: skip
    blind = [path.given for path in written if not path.looked]
    if not cases and blind:
        return unknown(f"not looked for: {blind[0]}")
    return conclude(run, cases, f"{len(written)} can be written")


@check("CFG067", "The reward function is in its file", needs=("config",), playbook="run-reward-function",
       caused_by=("CFG065",))  # fmt: skip
def reward_function(facts: Facts) -> Verdict:
    """Reads the names that the reward's file defines, without running it.

    What it does:
        Parses the file and looks for the configured name among its functions, classes, assignments and imports.

    Why it matters:
        A misspelt name is found when the first batch is scored, a syntax error at the same moment.
    """
    run = config_of(facts)
    reward = run.spec.reward
    if reward.function_path is None:
        return skip("no reward function of one's own")
    missing = why_missing(run.reward_names)
    names = run.reward_names.value
    if names is None:
        return unclear(missing) or skip(missing.reason if missing is not None else "the file is not there")
    if run.reward_error:
        # A warning: the run's Python may know grammar that this one does not.
        case = Case("warn", "reward.function_path", "a Python file", f"{reward.function_path}: {run.reward_error}")
        return conclude(run, [case], "")
    if reward.function_name in names or "*" in names:
        return passed(f"{reward.function_name} is there")
    near = get_close_matches(reward.function_name, names, n=1)
    there = ", ".join(names[:8]) or "nothing"
    case = Case("fail", "reward.function_name", f"a name of {reward.function_path} ({there})", reward.function_name,
                to=near[0] if near else None)  # fmt: skip
    return conclude(run, [case], "")
