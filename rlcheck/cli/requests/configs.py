"""What commands that begin with a config can be asked: config, memory-profile, data, rollout, drift, preflight."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rlcheck.cli.requests.report import (
    DryRunOption,
    FrameworkOption,
    GpuOption,
    ModelShapeOption,
    PlotOption,
    PortOption,
    PromptKeyOption,
    ReportRequest,
    YesOption,
)

OverridesArgument = Annotated[
    tuple[str, ...],
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of the config, applied last.", show_default=False),
]
StartTimeoutOption = Annotated[
    float, typer.Option("--start-timeout", min=1, metavar="SECONDS", help="Time that the engine has to start.")
]
RandomWeightsOption = Annotated[
    bool, typer.Option("--random-weights", help="Fill the model with random weights instead of loading its files.")
]


@dataclass(frozen=True)
class SourceRequest:
    """Which config, as a file or as Hydra's options name it."""

    config: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIG]",
            help="YAML of rltrain, verl or another trainer, a recipe, a script or pasted line that starts a run, "
            "a Python file that makes a trainer's config, or - for standard input.",
        ),
    ] = ""
    overrides: OverridesArgument = ()
    config_name: Annotated[
        str,
        typer.Option(
            "--config-name", metavar="NAME", help="Name of the config, as given to verl; overrides a script's."
        ),
    ] = ""
    config_path: Annotated[
        str,
        typer.Option(
            "--config-path",
            "--config-dir",
            metavar="DIR",
            help="Directory of the config that --config-name names, or a script's own --config-name.",
        ),
    ] = ""


@dataclass(frozen=True)
class MachineRequest:
    """The machine to plan for."""

    gpu: GpuOption = ""
    gpu_mem: Annotated[str, typer.Option("--gpu-mem", metavar="SIZE", help="Memory of a GPU: 80GiB, 81559MiB.")] = ""
    host_mem: Annotated[str, typer.Option("--host-mem", metavar="SIZE", help="RAM of a node: 1TiB.")] = ""


@dataclass(frozen=True)
class ConfigRequest:
    """Check the config of a run before it starts: report every rule that it breaks, all at once."""

    framework: FrameworkOption = "auto"
    no_fs: Annotated[
        bool,
        typer.Option(
            "--no-fs", help="Ignore the paths, models and GPUs of this machine: the config is for another one."
        ),
    ] = False
    model_shape: ModelShapeOption = ""
    source: SourceRequest = field(default_factory=SourceRequest)
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class ProfileRequest:
    """Predict the memory of a run, phase by phase: whether it fits, what would, what to change. Needs no GPU."""

    machine: MachineRequest = field(default_factory=MachineRequest)
    nodes: Annotated[
        int, typer.Option("--nodes", min=0, help="Plan for this many nodes, whatever the config says.")
    ] = 0
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=0, help="Plan for this many GPUs a node, whatever the config says.")
    ] = 0
    assume: Annotated[
        tuple[str, ...],
        typer.Option(
            "--assume",
            metavar="FIELD=VALUE",
            help="Value of what the config leaves open, by rlcheck's name: data.max_prompt_length=512. Repeatable.",
        ),
    ] = ()
    model_shape: ModelShapeOption = ""
    framework: FrameworkOption = "auto"
    source: SourceRequest = field(default_factory=SourceRequest)
    plot: PlotOption = None
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the phases on this machine's GPU, and compare.")
    ] = False
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class DataRequest:
    """Read every row of the data: form, prompts, answers, lengths, duplicates, leaks; each with its line and field."""

    words: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="[FILE|KEY=VALUE]...",
            help="JSONL (also .gz), Parquet, Arrow, or a directory of datasets.save_to_disk; overrides of --config. "
            "Default: the files of the config.",
            show_default=False,
        ),
    ] = ()
    config: Annotated[
        str,
        typer.Option(
            "--config", metavar="CONFIG", help="Config of the run that the data is for: a YAML, a recipe, a script."
        ),
    ] = ""
    val: Annotated[tuple[str, ...], typer.Option("--val", metavar="FILE", help="Validation data. Repeatable.")] = ()
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", metavar="DIR", help="Directory of the tokenizer. Default: the config's model.")
    ] = ""
    prompt_key: PromptKeyOption = ""
    framework: FrameworkOption = "auto"
    first: Annotated[
        int, typer.Option("--first", min=1, max=1000, help="Number of places to show for each kind of finding.")
    ] = 5
    fix: Annotated[
        bool, typer.Option("--fix", help="Write a cleaned copy of each file, and the rows left out with the reason.")
    ] = False
    dry_run: DryRunOption = False
    yes: YesOption = False
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="With --fix: directory of the copies. Default: next to each file."),
    ] = None
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class RolloutRequest:
    """Start the rollout engine of a config, or ask a running server: speed, log-probabilities, stops, lengths, sleep.

    A key for a server is read from RLCHECK_API_KEY, VLLM_API_KEY or SGLANG_API_KEY.
    """

    target: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIG|URL]",
            help="Config, as for `rlcheck config`, or the URL of a running vLLM or SGLang server.",
        ),
    ] = ""
    overrides: OverridesArgument = ()
    framework: FrameworkOption = "auto"
    start_timeout_s: StartTimeoutOption = 600.0
    random_weights: RandomWeightsOption = False
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class DriftRequest:
    """Compare the log-probabilities of rollout engine and training side: does the policy learn from what it did?

    With a CONFIG, start and compare both sides and search the cause; a RUN_DIR is only read.
    """

    target: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIG|RUN_DIR]",
            help="Config, as for `rlcheck config`, whose two sides are started and compared; or a finished run.",
        ),
    ] = ""
    overrides: OverridesArgument = ()
    framework: FrameworkOption = "auto"
    num_prompts: Annotated[
        int,
        typer.Option("--num-prompts", min=0, help="Number of prompts from the run's data, next to the built-in ones."),
    ] = 0
    random_weights: RandomWeightsOption = False
    try_all: Annotated[bool, typer.Option("--all", help="Try every variant even if the gap is within noise.")] = False
    operations: Annotated[
        bool,
        typer.Option("--operations", help="Compare every operation of the model and name the first that differs."),
    ] = False
    batch_invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Switch on the engine's batch-invariant mode (VLLM_BATCH_INVARIANT=1)."),
    ] = False
    start_timeout_s: StartTimeoutOption = 900.0
    budget_s: Annotated[
        float,
        typer.Option("--budget", min=0, metavar="SECONDS", help="Start no new variant after this many seconds."),
    ] = 600.0
    plot: PlotOption = None
    report: ReportRequest = field(default_factory=ReportRequest)


class LinkName(str, Enum):
    """The links of the chain, in their order (`rlcheck.preflight.links`, which takes longer to import)."""

    MACHINE = "machine"
    NETWORK = "network"
    COLLECTIVES = "collectives"
    DATA = "data"
    CONFIG = "config"
    MEMORY = "memory"
    ROLLOUT = "rollout"
    SMOKE = "smoke"
    REHEARSE = "rehearse"


@dataclass(frozen=True)
class ChainReportRequest(ReportRequest):
    """A chain examines the machine itself, with every check."""

    facts: None = None
    select: tuple[()] = ()


@dataclass(frozen=True)
class PreflightRequest:
    """The whole chain before a run: machine, network, collectives, data, config, memory, engine, and a real step.

    It stops where the next link cannot hold, and says why.
    """

    smoke: Annotated[bool, typer.Option("--smoke", help="End with one real training step on a cut-down batch.")] = False
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="End with a kill -9 after two real steps, a resume, and a comparison with a run that was not stopped.",
        ),
    ] = False
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out collectives and engine; read only the first rows of the data."),
    ] = False
    skip: Annotated[
        tuple[LinkName, ...], typer.Option("--skip", help="Leave out a link of the chain. Repeatable.")
    ] = ()
    head_ip: Annotated[
        str,
        typer.Option(
            "--head-ip",
            metavar="HOST[:PORT]",
            help="Address of the cluster's head. Default for several nodes: the one known here.",
        ),
    ] = ""
    port: PortOption = None
    machine: MachineRequest = field(default_factory=MachineRequest)
    model_shape: ModelShapeOption = ""
    framework: FrameworkOption = "auto"
    source: SourceRequest = field(default_factory=SourceRequest)
    start_timeout_s: StartTimeoutOption = 600.0
    report: ChainReportRequest = field(default_factory=ChainReportRequest)
