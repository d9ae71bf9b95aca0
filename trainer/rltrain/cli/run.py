"""`rltrain run`: from a config to a trained model, in order; and what is said when it does not come to that."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rltrain.cli.diagnosis import diagnose, failure_words
from rltrain.cli.requests import Extent, RunRequest, SftRequest
from rltrain.cluster.teardown import interrupt_on_signals
from rltrain.config import Loaded, Machine, RunConfig, check, load_with_notes, notes, resolve
from rltrain.config.machine import this_machine
from rltrain.config.resolve import chosen
from rltrain.config.schema.sft import SftConfig
from rltrain.core.collector import collector_off
from rltrain.core.errors import RunFailure, UserError
from rltrain.core.progress import Stages, screen
from rltrain.records import run_record
from rltrain.records.run_dir import RunDir, on_disk, read_steps

if TYPE_CHECKING:  # it brings the whole doctor, which `--dry-run` does without
    from rltrain.cli.preflight import Preflight
    from rltrain.cluster.fork_server import Imports

PREFLIGHT_TIMEOUT_S = 20.0
VALIDATION, HELD_OUT = "val/reward/mean", "val/loss"
DONE, FAILED, MISUSE, INTERRUPTED = 0, 1, 2, 130


def run(request: RunRequest) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: CONFIG or the run directory cannot be used (exit code 2).
    """
    # All of them are to do what Ctrl-C does, from the first moment to the last.
    interrupt_on_signals()
    console = screen()
    try:
        capsules = (f"trainer.capsule_steps=[{','.join(map(str, request.capsule))}]",) if request.capsule else ()
        loaded = load_with_notes(request.source, (*request.overrides, *capsules))
        config = resolve(loaded.config, _machine(request))
        check(config)
        if request.ignore:
            from rltrain.cli.preflight import refuse_unknown

            refuse_unknown(request.ignore)
        for note in (*loaded.notes, *notes(config)):
            console.print(f"note: {note}", markup=False, style="dim")
        if request.dry_run:
            _show_plan(console, loaded, config, request)
            return DONE
        if request.speeds:
            raise UserError("--speeds says what --dry-run predicts from; add --dry-run, or leave --speeds out")
        choices = chosen(loaded.config, config)
        if choices:
            words = "--dry-run lists them, run.json holds them"
            console.print(f"{len(choices)} settings left open are chosen: {words}", style="dim")
        return _execute(request, config, choices, console)
    except KeyboardInterrupt:
        return failed("stopped by a signal; nothing had been started", INTERRUPTED)


def _machine(request: RunRequest) -> Machine:
    """This machine; for a plan of `--gpu`, as if it had such a GPU.

    Raises:
        UserError: `--gpu` without `--dry-run`.
    """
    here = this_machine()
    if not request.gpu:
        return here
    if not request.dry_run:
        raise UserError("--gpu says what --dry-run plans for; a run takes the GPUs that are there")
    return Machine("cuda", max(here.num_gpus, 1), here.num_cpus)


def _show_plan(console: Console, loaded: Loaded, config: RunConfig, request: RunRequest) -> None:
    from rlcheck.report.tables import table_lines
    from rltrain.cli.dry_run import WIDTH, report
    from rltrain.cli.forecast import forecast_lines
    from rltrain.cluster.placement import nodes_as_asked, plan
    from rltrain.config.as_facts import facts_of
    from rltrain.config.memory_check import complaint, device_here, gpu_named
    from rltrain.data.schema import wrong_rows

    gpu = request.gpu
    if gpu and config.trainer.device == "cpu":
        raise UserError(f"--gpu {gpu}: the run is on the CPU (trainer.device=cpu)")
    device = gpu_named(gpu) if gpu else device_here(config.trainer.device)

    placed = plan(config, nodes_as_asked(config, this_machine().num_cpus))
    placement = table_lines(("role", "node", "device", "process"), placed.rows(), WIDTH)
    asynchrony = ["== Asynchrony ==", *forecast_lines(config, placed, request.speeds), ""]
    choices = ["== Chosen, where the config left it open ==", *chosen(loaded.config, config), ""]
    for line in (*choices, *report(config, placement, device), *asynchrony):
        console.print(line, markup=False)
    if too_large := complaint(facts_of(config), device):
        where = "such GPUs" if gpu else "this machine"
        console.print(f"a run on {where} would be refused: {too_large}", markup=False)
    for wrong in wrong_rows(config.data):
        console.print(f"a run on this data would be refused: {wrong}", markup=False)


def _execute(request: RunRequest, config: RunConfig, choices: Sequence[str], console: Console) -> int:
    from rltrain.cluster.ray_start import refuse_torchrun

    refuse_torchrun()
    begin = time.monotonic()
    directory = RunDir(Path(config.trainer.default_local_dir))
    try:
        preflight = _preflight(request, config, console)
    except RunFailure as error:
        return failed(str(error))
    console.print(f"preflight: {preflight.line()}", markup=False)
    if line := _prediction(config):
        console.print(line, markup=False)
    return in_directory(request, config, choices, preflight, console, lambda: _train(config, directory, console, begin))


def in_directory(
    request: RunRequest | SftRequest,
    config: RunConfig | SftConfig,
    choices: Sequence[str],
    preflight: Preflight,
    console: Console,
    train: Callable[[], dict[str, Any]],
) -> int:
    """Hold the run directory of CONFIG, note there what begins, and run TRAIN; the exit code."""
    directory = RunDir(Path(config.trainer.default_local_dir))
    with directory.claimed(afresh=_starts_afresh(config, directory)) as moved:
        if moved is not None:
            console.print(f"an earlier run lay in {directory.path}; it is kept as {moved}", markup=False)
        console.print(f"run directory: {directory.path}", markup=False)
        record = run_record.describe(config, command=sys.argv, chosen=choices, preflight=preflight.record())
        with on_disk(f"the run directory {directory.path} cannot be written"):
            run_record.write_record(directory, record)
            directory.facts.write_bytes(preflight.facts_json())
        return _outcome(request, directory, console, train)


def _preflight(request: RunRequest, config: RunConfig, console: Console) -> Preflight:
    from rltrain.cli.preflight import Origin, Preflight, examine

    if request.skip_checks:
        return Preflight(True, request.ignore)
    full = request.preflight is Extent.FULL
    return examine(
        config,
        Origin(request.source, request.overrides),
        request.ignore,
        PREFLIGHT_TIMEOUT_S,
        full=full,
        told=lambda line: console.print(f"preflight: {line}", markup=False) if full else None,
    )


def _prediction(config: RunConfig) -> str:
    """What the GPUs will hold at the fullest, and what could be had for more; "" on a CPU, or where it is not known."""
    from rltrain.config.memory_check import offer_for, prediction_for, prediction_line

    prediction = prediction_for(config) if config.trainer.device == "cuda" else None
    return "" if prediction is None else "\n".join(filter(None, (prediction_line(prediction), offer_for(config))))


def _starts_afresh(config: RunConfig | SftConfig, directory: RunDir) -> bool:
    """Whether nothing of what an earlier run left in DIRECTORY goes on."""
    from rltrain.records.checkpoints import last

    mode = config.trainer.resume_mode
    return mode == "disable" or (mode == "auto" and last(directory.checkpoints) is None)


def _train(config: RunConfig, directory: RunDir, console: Console, begin: float) -> dict[str, Any]:
    from rltrain.cluster.runtime import connect

    stages = Stages(console)
    # What trains takes as long to import as Ray to start, and Ray's start is spent in waiting for its processes.
    Thread(target=_import_ahead, daemon=True).start()
    with ExitStack() as stack:
        with collector_off():
            with stages.stage("starting Ray"):
                parts = (config, directory.logs, stages.say, stages.still, _imports(config))
                runtime = stack.enter_context(connect(*parts))
            from rltrain.controller.session import train_session

        return train_session(config, directory, runtime, stages, console, begin)


def _imports(config: RunConfig) -> Imports | None:
    from rltrain.cluster.placement import nodes_as_asked, plan
    from rltrain.workers.imports import imports_of

    placement = plan(config, nodes_as_asked(config, this_machine().num_cpus))
    return imports_of(config, (*placement.train, *placement.rollout))


def _import_ahead() -> None:
    with suppress(Exception):  # the import that waits for this one raises it where it can be told
        import rltrain.controller.session  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _outcome(
    request: RunRequest | SftRequest, directory: RunDir, console: Console, train: Callable[[], dict[str, Any]]
) -> int:
    """Run TRAIN, note in `run.json` how it ended, and say it in a few lines."""
    from rltrain.cluster.teardown import Interrupted

    begin = time.time()
    try:
        facts = train()
    except (Interrupted, KeyboardInterrupt) as stop:
        _note(directory, "interrupted")
        words = f"{str(stop) or 'stopped by a signal'}. {_after(request, directory)}"
        console.print(f"rltrain: {words}", markup=False)
        return INTERRUPTED
    except UserError as error:
        _note(directory, "failed", error=str(error))
        lines = [str(error), *diagnose(directory.logs, begin, str(error))]
        # A checkpoint or data that cannot be gone on with: the message says already how to start.
        last = [] if "trainer.resume_mode=" in lines[0] else [_after(request, directory)]
        return failed("\n".join([*lines, *last]))
    # The border of the program: a fault of ours, too, ends in words, with its traceback in a log.
    except Exception as error:
        words = failure_words(error, directory.logs)
        lines = [words, *diagnose(directory.logs, begin, words)]
        _note(directory, "failed", error=lines[0])
        return failed("\n".join([*lines, _after(request, directory)]))
    _note(directory, "finished", **facts)
    for line in ending(directory, facts):
        console.print(line, markup=False)
    return DONE


def _note(directory: RunDir, outcome: str, **facts: Any) -> None:
    """Add the outcome to `run.json`, unless the disk is full: that is not what the user must know then."""
    with suppress(OSError):
        run_record.finish(directory, outcome, **facts)


def _after(request: RunRequest | SftRequest, directory: RunDir) -> str:
    """What is saved, how to go on, and where the logs are."""
    from rltrain.records.checkpoints import finished

    saved = finished(directory.checkpoints)
    if not saved:
        return f"Nothing was saved yet. Logs of every process: {directory.logs}"
    return f"Saved up to step {saved[-1].step}: go on with {resume_command(request)}. Logs: {directory.logs}"


def resume_command(request: RunRequest | SftRequest) -> str:
    """The command that goes on from the last checkpoint."""
    replaced = ("trainer.resume_mode=", "trainer.resume_from_path=")
    kept = [override for override in request.overrides if not override.lstrip("+").startswith(replaced)]
    waived = [word for check in request.ignore for word in ("--ignore", check)]
    skipped = ["--skip-checks"] if request.skip_checks else []
    return shlex.join(
        ["rltrain", request.COMMAND, request.source, *skipped, *waived, *kept, "trainer.resume_mode=auto"]
    )


def ending(directory: RunDir, facts: Mapping[str, Any]) -> list[str]:
    """The last words of a run that went well: what it reached, and what to do with it."""
    from rltrain.records.checkpoints import finished

    steps, saved = read_steps(directory.metrics), finished(directory.checkpoints)
    lines = [f"finished {facts['steps']} steps in {facts['wall_s']:.0f} s"]
    for name, sign in ((VALIDATION, 1), (HELD_OUT, -1)):
        values = [(step["step"], step[name]) for step in steps if step.get(name) is not None]
        if values:
            step, best = max(values, key=lambda pair: (sign * pair[1], pair[0]))
            kept = "" if any(checkpoint.step == step for checkpoint in saved) else ", not saved"
            lines[0] += f": {name} {values[0][1]:.3f} -> {values[-1][1]:.3f}, best {best:.3f} (step {step}{kept})"
    if saved:
        is_sft = any(HELD_OUT in step or "train/loss" in step for step in steps)
        use = f"go on with rltrain run CONFIG actor_rollout_ref.model.path={saved[-1].path}, or take it along with"
        lines += [
            f"saved: {saved[-1].path}",
            f"{use if is_sft else 'score it with rltrain eval, or take it along with'} rltrain export",
        ]
    return [*lines, f"was it healthy? rlcheck run {shlex.quote(str(directory.path))}"]


def failed(message: str, code: int = FAILED) -> int:
    """Say MESSAGE on standard error; CODE."""
    print(f"rltrain: {message}", file=sys.stderr)  # noqa: T201
    return code
