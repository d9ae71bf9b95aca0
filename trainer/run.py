"""`rltrain run`: from a config to a trained model, in order; and what is said when it does not come to that."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer import run_record
from trainer.cluster.teardown import stop_signals
from trainer.config import Loaded, Machine, RunConfig, check, load_with_notes, notes, resolve
from trainer.config.resolve import chosen
from trainer.diagnosis import diagnose, failure_words
from trainer.errors import RunFailure, UserError
from trainer.machine import this_machine
from trainer.progress import screen
from trainer.run_dir import RunDir, on_disk, read_steps

if TYPE_CHECKING:  # it brings the whole doctor, which `--dry-run` does without
    from trainer.preflight import Preflight

PREFLIGHT_TIMEOUT_S = 20.0
VALIDATION = "val/reward/mean"
DONE, FAILED, MISUSE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class RunOptions:
    """The options of one call, as in `rltrain run --help`."""

    source: str
    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    gpu: str = ""
    ignore: tuple[str, ...] = ()
    skip_checks: bool = False
    full_preflight: bool = False


def run_training(options: RunOptions) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: CONFIG or the run directory cannot be used (exit code 2).
    """
    # All of them are to do what Ctrl-C does, from the first moment to the last.
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler)
    console = screen()
    try:
        loaded = load_with_notes(options.source, options.overrides)
        config = resolve(loaded.config, _machine(options))
        check(config)
        if options.ignore:
            _refuse_unknown(options.ignore)
        for note in (*loaded.notes, *notes(config)):
            console.print(f"note: {note}", markup=False, style="dim")
        if options.dry_run:
            _show_plan(console, loaded, config, options.gpu)
            return DONE
        choices = chosen(loaded.config, config)
        if choices:
            words = "--dry-run lists them, run.json holds them"
            console.print(f"{len(choices)} settings left open are chosen: {words}", style="dim")
        return _execute(options, config, choices, console)
    except KeyboardInterrupt:
        return _failed("stopped by a signal; nothing had been started", INTERRUPTED)


def _refuse_unknown(ignore: Sequence[str]) -> None:
    from trainer.preflight import refuse_unknown

    refuse_unknown(ignore)


def _machine(options: RunOptions) -> Machine:
    """This machine; for a plan of `--gpu`, as if it had such a GPU.

    Raises:
        UserError: `--gpu` without `--dry-run`.
    """
    here = this_machine()
    if not options.gpu:
        return here
    if not options.dry_run:
        raise UserError("--gpu says what --dry-run plans for; a run takes the GPUs that are there")
    return Machine("cuda", max(here.num_gpus, 1), here.num_cpus)


def _show_plan(console: Console, loaded: Loaded, config: RunConfig, gpu: str) -> None:
    from trainer.cluster.placement import nodes_as_asked, plan
    from trainer.dry_run import report, table
    from trainer.memory.as_facts import facts_of
    from trainer.memory_check import complaint, device_here, gpu_named

    if gpu and config.trainer.device == "cpu":
        raise UserError(f"--gpu {gpu}: the run is on the CPU (trainer.device=cpu)")
    device = gpu_named(gpu) if gpu else device_here(config.trainer.device)

    rows = plan(config, nodes_as_asked(config, this_machine().num_cpus)).rows()
    placement = table(("role", "node", "device", "process"), rows)
    choices = ["== Chosen, where the config left it open ==", *chosen(loaded.config, config), ""]
    for line in (*choices, *report(config, placement, device)):
        console.print(line, markup=False)
    if too_large := complaint(facts_of(config), device):
        where = "such GPUs" if gpu else "this machine"
        console.print(f"a run on {where} would be refused: {too_large}", markup=False)


def _execute(options: RunOptions, config: RunConfig, choices: Sequence[str], console: Console) -> int:
    from trainer.cluster.ray_start import refuse_torchrun

    refuse_torchrun()
    begin = time.monotonic()
    directory = RunDir(Path(config.trainer.default_local_dir))
    try:
        preflight = _preflight(options, config, console)
    except RunFailure as error:
        return _failed(str(error))
    console.print(f"preflight: {preflight.line()}", markup=False)
    if line := _prediction(config):
        console.print(line, markup=False)
    with directory.claimed(afresh=_starts_afresh(config, directory)) as moved:
        if moved is not None:
            console.print(f"an earlier run lay in {directory.path}; it is kept as {moved}", markup=False)
        console.print(f"run directory: {directory.path}", markup=False)
        record = run_record.describe(config, command=sys.argv, chosen=choices, preflight=preflight.record())
        with on_disk(f"the run directory {directory.path} cannot be written"):
            run_record.write_record(directory, record)
            directory.facts.write_bytes(preflight.facts_json())
        return _outcome(options, directory, console, lambda: _train(config, directory, console, begin))


def _preflight(options: RunOptions, config: RunConfig, console: Console) -> Preflight:
    from trainer.preflight import Origin, Preflight, examine

    if options.skip_checks:
        return Preflight(True, options.ignore)
    full = options.full_preflight
    return examine(
        config,
        Origin(options.source, options.overrides),
        options.ignore,
        PREFLIGHT_TIMEOUT_S,
        full=full,
        told=lambda line: console.print(f"preflight: {line}", markup=False) if full else None,
    )


def _prediction(config: RunConfig) -> str:
    """What the GPUs will hold at the fullest; "" on a CPU, or where it is not known."""
    from trainer.memory_check import prediction_for, prediction_line

    prediction = prediction_for(config) if config.trainer.device == "cuda" else None
    return "" if prediction is None else prediction_line(prediction)


def _starts_afresh(config: RunConfig, directory: RunDir) -> bool:
    """Whether nothing of what an earlier run left in DIRECTORY goes on."""
    from trainer.checkpoints import last

    mode = config.trainer.resume_mode
    return mode == "disable" or (mode == "auto" and last(directory.checkpoints) is None)


def _train(config: RunConfig, directory: RunDir, console: Console, begin: float) -> dict[str, Any]:
    from trainer.session import train_session

    return train_session(config, directory, console, begin)


def _outcome(options: RunOptions, directory: RunDir, console: Console, train: Callable[[], dict[str, Any]]) -> int:
    """Run TRAIN, note in `run.json` how it ended, and say it in a few lines."""
    from trainer.cluster.teardown import Interrupted

    begin = time.time()
    try:
        facts = train()
    except (Interrupted, KeyboardInterrupt) as stop:
        _note(directory, "interrupted")
        words = f"{str(stop) or 'stopped by a signal'}. {_after(options, directory)}"
        console.print(f"rltrain: {words}", markup=False)
        return INTERRUPTED
    except UserError as error:
        _note(directory, "failed", error=str(error))
        lines = [str(error), *diagnose(directory.logs, begin, str(error))]
        # A checkpoint or data that cannot be gone on with: the message says already how to start.
        last = [] if "trainer.resume_mode=" in lines[0] else [_after(options, directory)]
        return _failed("\n".join([*lines, *last]))
    # The border of the program: a fault of ours, too, ends in words, with its traceback in a log.
    except Exception as error:
        words = failure_words(error, directory.logs)
        lines = [words, *diagnose(directory.logs, begin, words)]
        _note(directory, "failed", error=lines[0])
        return _failed("\n".join([*lines, _after(options, directory)]))
    _note(directory, "finished", **facts)
    for line in ending(directory, facts):
        console.print(line, markup=False)
    return DONE


def _note(directory: RunDir, outcome: str, **facts: Any) -> None:
    """Add the outcome to `run.json`, unless the disk is full: that is not what the user must know then."""
    with suppress(OSError):
        run_record.finish(directory, outcome, **facts)


def _after(options: RunOptions, directory: RunDir) -> str:
    """What is saved, how to go on, and where the logs are."""
    from trainer.checkpoints import finished

    saved = finished(directory.checkpoints)
    if not saved:
        return f"Nothing was saved yet. Logs of every process: {directory.logs}"
    return f"Saved up to step {saved[-1].step}: go on with {resume_command(options)}. Logs: {directory.logs}"


def resume_command(options: RunOptions) -> str:
    """The command that goes on from the last checkpoint."""
    replaced = ("trainer.resume_mode=", "trainer.resume_from_path=")
    kept = [override for override in options.overrides if not override.lstrip("+").startswith(replaced)]
    waived = [word for check in options.ignore for word in ("--ignore", check)]
    skipped = ["--skip-checks"] if options.skip_checks else []
    return shlex.join(["rltrain", "run", options.source, *skipped, *waived, *kept, "trainer.resume_mode=auto"])


def ending(directory: RunDir, facts: Mapping[str, Any]) -> list[str]:
    """The last words of a run that went well: what it reached, and what to do with it."""
    from trainer.checkpoints import finished

    steps, saved = read_steps(directory.metrics), finished(directory.checkpoints)
    values = [(step["step"], step[VALIDATION]) for step in steps if step.get(VALIDATION) is not None]
    lines = [f"finished {facts['steps']} steps in {facts['wall_s']:.0f} s"]
    if values:
        step, best = max(values, key=lambda pair: (pair[1], pair[0]))
        kept = "" if any(checkpoint.step == step for checkpoint in saved) else ", not saved"
        lines[0] += f": {VALIDATION} {values[0][1]:.3f} -> {values[-1][1]:.3f}, best {best:.3f} (step {step}{kept})"
    if saved:
        lines += [f"saved: {saved[-1].path}", "score it with rltrain eval, or take it along with rltrain export"]
    return [*lines, f"was it healthy? rlcheck run {shlex.quote(str(directory.path))}"]


def _failed(message: str, code: int = FAILED) -> int:
    print(f"rltrain: {message}", file=sys.stderr)  # noqa: T201
    return code
