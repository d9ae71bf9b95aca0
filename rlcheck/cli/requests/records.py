"""What commands that read a run can be asked: run, step, canary, reward, hang, resume, slow."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rlcheck.cli.requests.report import (
    ClusterOption,
    GpuOption,
    HostsOption,
    ModelShapeOption,
    PortOption,
    PromptKeyOption,
    ReportRequest,
)

CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="A model's directory. canary: what the server is to have; step: weights before the step, for a capsule "
        "that holds a part of them.",
    ),
]


@dataclass(frozen=True)
class RunReportRequest(ReportRequest):
    """A run is read without a Python."""

    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="With --watch: stop watching after this time."),
    ] = None
    python: str = ""


@dataclass(frozen=True)
class StepRequest:
    """Recompute a training step from its capsule by a reference of its own, and name the first link that differs.

    `rltrain run CONFIG --capsule STEP` keeps a capsule; small models keep one of their first step by themselves.
    """

    capsules: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="[CAPSULE|RUN_DIR]...",
            help="Directory of a capsule, RUN_DIR/capsules/step_N; or of a run, for all of its capsules.",
            show_default=False,
        ),
    ] = ()
    checkpoint: CheckpointOption = None
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Run the step again by the trainer itself, on this machine and its versions: is it the same to the "
            "bit? Of a large model with --checkpoint RUN_DIR/checkpoints/global_step_N, of the step before.",
        ),
    ] = False
    each_device: Annotated[
        bool,
        typer.Option(
            "--each-device", help="Run the step's first micro batch on every GPU of this machine, and compare them."
        ),
    ] = False
    score: Annotated[
        Path | None,
        typer.Option(
            "--score",
            metavar="FILE",
            help="Run your own reward function from this file, to judge its rewards; without it none is run.",
        ),
    ] = None
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class CanaryRequest:
    """Compare log-probabilities of a live vLLM or SGLang server with a saved checkpoint: has it these weights?

    The server is only asked; the checkpoint is loaded here.
    """

    url: Annotated[str, typer.Argument(metavar="[URL]", help="The server: http://HOST:PORT.")] = ""
    checkpoint: CheckpointOption = None
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", metavar="DIR", help="LoRA adapter that the server is to answer with (see --model)."),
    ] = None
    earlier: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--earlier", metavar="DIR", help="An earlier checkpoint, whose weights it may still have. Repeatable."
        ),
    ] = ()
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Name that the server gives the model. Default: its first.")
    ] = ""
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="bfloat16, float16 or float32: what the server computes in, where it does not say.",
        ),
    ] = ""
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class RewardRequest:
    """Call a reward function on right, wrong and odd answers: sign, ground truth, shortcuts, NaN, time, threads.

    The code in FILE runs, in processes of its own, because you name it; nothing that the data names is run.
    """

    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Python file with the function, which takes verl's and rltrain's arguments (compute_score) or TRL's.",
            show_default=False,
        ),
    ] = None
    words: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="More arguments of the function, as a config gives them (reward_kwargs).",
            show_default=False,
        ),
    ] = ()
    data: Annotated[
        str,
        typer.Option("--data", metavar="DATA", help="Rows with ground truths: JSONL, Parquet, or a saved dataset."),
    ] = ""
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the function. Default: compute_score, or the only one."),
    ] = ""
    prompt_key: PromptKeyOption = ""
    form: Annotated[
        str,
        typer.Option(
            "--form",
            metavar="TEXT",
            help="How an answer is written, {} standing for it: 'Result: {}'. Default: the usual forms are tried.",
        ),
    ] = ""
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class RunRequest:
    """Judge a running or finished training run by its metrics and samples: what went wrong first, and since which step.

    As a guard in a script: rlcheck run DIR --watch || scancel $JOB
    """

    target: Annotated[
        str,
        typer.Argument(
            metavar="[RUN_DIR]",
            help="Directory of a run, or its metrics: JSONL, TensorBoard events, trainer_state.json, "
            "verl's console log, a CSV of W&B.",
        ),
    ] = ""
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Follow the run until it ends; exit with 1 at the first failure or when it stalls."
        ),
    ] = False
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.05, metavar="SECONDS", help="With --watch: polling interval.")
    ] = 5.0
    stall_s: Annotated[
        float,
        typer.Option(
            "--stall-s",
            min=0.1,
            metavar="SECONDS",
            help="With --watch: minimum time without a new step before the run counts as stalled.",
        ),
    ] = 600.0
    start_timeout_s: Annotated[
        float,
        typer.Option(
            "--start-timeout", min=0.1, metavar="SECONDS", help="With --watch: time that the first step may take."
        ),
    ] = 1800.0
    compare: Annotated[
        str,
        typer.Option(
            "--compare", metavar="RUN_DIR", help="Compare with another run: what differs, and since which step."
        ),
    ] = ""
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page with curves, samples and findings."),
    ] = None
    report: RunReportRequest = field(default_factory=RunReportRequest)


@dataclass(frozen=True)
class HangRequest:
    """Look at a running job, here or on several nodes: does it stand still, and for which rank or role do all wait?

    Exit codes: 0 it goes on, 1 it stands still, 2 that could not be judged.
    """

    target: Annotated[
        str,
        typer.Argument(
            metavar="[RUN_DIR]",
            help="Directory of the run. Default: the only job of torchrun or Ray on this machine.",
            show_default=False,
        ),
    ] = ""
    pid: Annotated[int | None, typer.Option("--pid", min=1, help="A process of the job, where several jobs run.")] = (
        None
    )
    watched_s: Annotated[
        float,
        typer.Option(
            "--for", min=0.5, max=600.0, metavar="SECONDS", help="How long nothing may move in a job that stands still."
        ),
    ] = 6.0
    head_ip: ClusterOption = ""
    port: PortOption = None
    hosts: HostsOption = ""
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class ResumeRequest:
    """Read the checkpoints of a run: are they whole, from which step does it resume, on how many ranks, with what lost?

    Of rltrain, verl, and transformers' Trainer (TRL). No file is unpickled.
    """

    target: Annotated[
        str,
        typer.Argument(
            metavar="[DIR]", help="A run's folder, that of its checkpoints, or one checkpoint.", show_default=False
        ),
    ] = ""
    ranks: Annotated[
        int,
        typer.Option("--ranks", min=0, metavar="N", help="Training ranks that the run will have.", show_default=False),
    ] = 0
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Also read all of the checkpoint from which the run would resume.")
    ] = False
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class SlowRequest:
    """Say where the time of a step goes, against a floor, and what to change first.

    Of any trainer, as far as its files go: timing_s/* metrics, traces of torch's profiler, /metrics of vLLM or SGLang.
    """

    targets: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="[RUN|FILE]...",
            help="A run's folder or metrics, with its traces and scrapes of /metrics, or any of these alone.",
            show_default=False,
        ),
    ] = ()
    config: Annotated[
        str,
        typer.Option("--config", metavar="CONFIG", help="The run's config, for floors, where the run has kept none."),
    ] = ""
    gpu: GpuOption = ""
    model_shape: ModelShapeOption = ""
    report: ReportRequest = field(default_factory=ReportRequest)
