"""`rltrain sft`: from a config to a model that was trained on given rows, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rltrain.cli.requests import SftRequest
from rltrain.cli.run import DONE, FAILED, INTERRUPTED, failed, in_directory
from rltrain.cluster.teardown import interrupt_on_signals
from rltrain.config.load import load_sft
from rltrain.config.machine import this_machine
from rltrain.config.resolve import chosen
from rltrain.config.schema.sft import SftConfig
from rltrain.config.sft import as_run, check_sft, resolve_sft, sft_notes
from rltrain.core.errors import RunFailure
from rltrain.core.progress import screen
from rltrain.records.run_dir import RunDir

PREFLIGHT_TIMEOUT_S = 20.0


def run(request: SftRequest) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: CONFIG or the run directory cannot be used (exit code 2).
    """
    interrupt_on_signals()
    console = screen()
    try:
        loaded = load_sft(request.source, request.overrides)
        config = resolve_sft(loaded.config, this_machine())
        check_sft(config)
        if request.ignore:
            from rltrain.cli.preflight import refuse_unknown

            refuse_unknown(request.ignore)
        for note in (*loaded.notes, *sft_notes(config)):
            console.print(f"note: {note}", markup=False, style="dim")
        choices = chosen(loaded.config, config)
        if request.dry_run:
            _show_plan(console, choices, config)
            return DONE
        return _execute(request, config, choices, console)
    except KeyboardInterrupt:
        return failed("stopped by a signal; nothing had been started", INTERRUPTED)


def _show_plan(console: Console, choices: Sequence[str], config: SftConfig) -> None:
    from rlcheck.report.tables import table_lines
    from rltrain.cli.dry_run import WIDTH, sft_report
    from rltrain.cluster.placement import nodes_as_asked, plan_ranks
    from rltrain.config.memory_check import device_here

    run = as_run(config)
    rows = plan_ranks(run, nodes_as_asked(run, this_machine().num_cpus)).rows()
    placement = table_lines(("role", "node", "device", "process"), rows, WIDTH)
    heading = ["== Chosen, where the config left it open ==", *choices, ""]
    for line in (*heading, *sft_report(config, placement, device_here(config.trainer.device))):
        console.print(line, markup=False)


def _execute(request: SftRequest, config: SftConfig, choices: Sequence[str], console: Console) -> int:
    from rltrain.cli.preflight import Preflight, examine_machine
    from rltrain.cluster.ray_start import refuse_torchrun

    refuse_torchrun()
    begin = time.monotonic()
    try:
        preflight = Preflight(True, request.ignore)
        if not request.skip_checks:
            preflight = examine_machine(as_run(config), request.source, request.ignore, PREFLIGHT_TIMEOUT_S)
    except RunFailure as error:
        return failed(str(error), FAILED)
    console.print(f"preflight: {preflight.line()}", markup=False)

    def train() -> dict[str, Any]:
        from rltrain.controller.sft import sft_session

        return sft_session(config, RunDir(Path(config.trainer.default_local_dir)), console, begin)

    return in_directory(request, config, choices, preflight, console, train)
