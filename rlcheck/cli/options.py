"""The options that every command shares, spelled once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """What a report can be printed as."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"


class Backend(str, Enum):
    """What carries the collectives."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


class Pairs(str, Enum):
    """Which pairs of machines are measured."""

    AUTO = "auto"
    QUICK = "quick"
    ALL = "all"
    NONE = "none"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the report.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the report to this file instead of standard output.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also for warnings and for checks that could not be made.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="ID", help="Waive a check; it is shown as waived. Repeatable.")
]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", metavar="ID|FAMILY", help="Only these checks. Repeatable.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Longest time that any one examination may take. Each has a deadline of its own, too.",
    ),
]
FactsOption = Annotated[
    Path | None, typer.Option("--facts", help="Judge a file of `rlcheck collect` instead of this machine.")
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Examine another Python: an interpreter, a venv or conda directory, or a command that starts one.",
    ),
]
DeepOption = Annotated[bool, typer.Option("--deep", help="Also import every engine in a process of its own (slow).")]
FixOption = Annotated[bool, typer.Option("--fix", help="Apply the safe fixes, after showing them, and look again.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="With --fix: show what would be done, and stop.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, with its evidence.")]
FullOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every diagnosis, quote and source in full.")]
AsciiOption = Annotated[bool, typer.Option("--ascii", "--ascii-only", help="Use ASCII characters only.")]
HeadOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="The head's address. Default: RAY_ADDRESS, or the Ray that ran here."
    ),
]
MeasuredHeadOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="Measure the nodes of this Ray cluster. Default: this machine alone."
    ),
]
PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="The head's port (6379).")]
HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts",
        metavar="FILE|slurm",
        help="Machines to reach by ssh, one a line ([user@]host[:port] [slots=N]), or those of this Slurm job by srun.",
    ),
]
RecordOption = Annotated[
    Path | None, typer.Option("--record", help="Also write the facts, secrets removed, for a later --facts.")
]
WantedNodesOption = Annotated[int, typer.Option("--nodes", min=0, help="Would a run on so many nodes fit?")]
WantedGpusOption = Annotated[
    int, typer.Option("--gpus-per-node", min=0, help="Would a run with so many GPUs on each node fit?")
]
ClientOption = Annotated[bool, typer.Option("--client", help="Also examine the Ray Client's port, 10001.")]
DashboardOption = Annotated[bool, typer.Option("--dashboard", help="Also examine the dashboard's port, 8265.")]
StartHelpOption = Annotated[
    bool, typer.Option("--start-help", help="Print the `ray start` lines for this network, and stop.")
]
BackendOption = Annotated[Backend, typer.Option("--backend", help="auto: nccl where there are GPUs, else gloo.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.")]
MaxSizeOption = Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Largest message: 64MiB, 4GiB.")]
RanksOption = Annotated[
    int, typer.Option("--ranks-per-node", min=0, help="Processes on each machine (one a GPU; 1 without).")
]
PairsOption = Annotated[
    Pairs,
    typer.Option(
        "--pairs", help="Pairs of machines: all, quick (two partners each), none; auto: all, quick for --quick over 16."
    ),
]
StepTimeoutOption = Annotated[
    float, typer.Option("--step-timeout", min=1, metavar="SECONDS", help="Deadline of one step before it hangs.")
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png|.html", help="Draw bandwidth over size.")]
ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="[CONFIG]",
        help="A YAML of rltrain or verl, a recipe, a script or pasted line that starts a run, or - for standard input.",
    ),
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, applied last.", show_default=False)
]
ConfigNameOption = Annotated[
    str, typer.Option("--config-name", metavar="NAME", help="As given to verl: a config of its own, or of yours.")
]
ConfigPathOption = Annotated[
    str, typer.Option("--config-path", "--config-dir", metavar="DIR", help="Where the config of --config-name lies.")
]
FrameworkOption = Annotated[
    str, typer.Option("--framework", metavar="NAME", help="rltrain, verl, verl@0.8.0 or spec, where it is not clear.")
]
ModelShapeOption = Annotated[
    str,
    typer.Option(
        "--model-shape",
        metavar="FILE|SIZES",
        help="The model's config.json, or hidden_size=…,num_hidden_layers=…, where its files are not here.",
    ),
]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="NAME", help="Which GPU: H200, a100-80gb. Default: this one.")]
GpuMemoryOption = Annotated[str, typer.Option("--gpu-mem", metavar="SIZE", help="Memory of a GPU: 80GiB, 81559MiB.")]
HostMemoryOption = Annotated[str, typer.Option("--host-mem", metavar="SIZE", help="RAM of a node: 1TiB.")]
RunNodesOption = Annotated[int, typer.Option("--nodes", min=0, help="As if the run had so many nodes.")]
RunGpusOption = Annotated[int, typer.Option("--gpus-per-node", min=0, help="As if each node had so many GPUs.")]
MemoryPlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png|.html", help="Draw the phases.")]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Also run the phases on this machine's GPU, and compare.")
]
NoFsOption = Annotated[
    bool, typer.Option("--no-fs", help="The config is for another machine: look at no path, model or GPU of this one.")
]
RolloutArgument = Annotated[
    str,
    typer.Argument(
        metavar="[CONFIG|URL]",
        help="A config, as for `rlcheck config`, or the URL of a running vLLM or SGLang server.",
    ),
]
StartTimeoutOption = Annotated[
    float, typer.Option("--start-timeout", min=1, metavar="SECONDS", help="Longest time for the engine to start.")
]
RandomWeightsOption = Annotated[
    bool, typer.Option("--random-weights", help="Do not load the weights of the model's files.")
]
RunDirArgument = Annotated[
    str,
    typer.Argument(
        metavar="[RUN_DIR]",
        help="The directory of a run, or its metrics: JSONL, TensorBoard events, trainer_state.json.",
    ),
]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", help="Follow a run until it ends; exit with 1 at the first fail, or when it stands still."),
]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.05, metavar="SECONDS", help="With --watch: between two looks.")
]
StallOption = Annotated[
    float,
    typer.Option(
        "--stall-s", min=0.1, metavar="SECONDS", help="With --watch: how long a step may take, if steps are quick."
    ),
]
FirstStepOption = Annotated[
    float, typer.Option("--start-timeout", min=0.1, metavar="SECONDS", help="With --watch: until the first step.")
]
CompareOption = Annotated[
    str, typer.Option("--compare", metavar="RUN_DIR", help="Set another run beside it: what differs, and since when.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write one page with curves, samples and findings.")
]
RunTimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="With --watch: watch no longer than this."),
]
DriftArgument = Annotated[
    str,
    typer.Argument(
        metavar="[CONFIG|RUN_DIR]",
        help="A config, as for `rlcheck config`: both sides are started and compared. Or a run that has been made.",
    ),
]
NumPromptsOption = Annotated[
    int, typer.Option("--num-prompts", min=0, help="Prompts of the run's data, beside the built-in ones.")
]
TryAllOption = Annotated[bool, typer.Option("--all", help="Try every change, also where nothing is to be explained.")]
OperationsOption = Annotated[
    bool, typer.Option("--operations", help="Compare every operation of the model: where does the difference enter?")
]
BatchInvariantOption = Annotated[
    bool, typer.Option("--batch-invariant", help="With the engine's batch-invariant mode (VLLM_BATCH_INVARIANT=1).")
]
BudgetOption = Annotated[
    float, typer.Option("--budget", min=0, metavar="SECONDS", help="Begin no further change after so long.")
]
DriftPlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png|.html", help="Draw histogram, scatter and growth.")
]
DataArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|KEY=VALUE]...",
        help="JSONL (.gz, too), Parquet, Arrow, or a directory of datasets.save_to_disk; overrides of --config. "
        "Without a file: those of the config.",
        show_default=False,
    ),
]
DataConfigOption = Annotated[
    str, typer.Option("--config", metavar="CONFIG", help="The run that the data is for: a YAML, a recipe, a script.")
]
ValOption = Annotated[list[str] | None, typer.Option("--val", metavar="FILE", help="Validation data. Repeatable.")]
TokenizerOption = Annotated[
    str, typer.Option("--tokenizer", metavar="DIR", help="Directory of the tokenizer. Default: the config's model.")
]
PromptKeyOption = Annotated[
    str, typer.Option("--prompt-key", metavar="COLUMN", help="The column of the prompt. Default: the config's.")
]
FirstOption = Annotated[int, typer.Option("--first", min=1, max=1000, help="Places shown of each kind.")]
CleanOption = Annotated[
    bool, typer.Option("--fix", help="Write a cleaned copy of each file, and what was put aside with the reason.")
]
CleanDryRunOption = Annotated[bool, typer.Option("--dry-run", help="With --fix: say what would be written.")]
CleanYesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --fix: overwrite earlier copies.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="With --fix: where to. Default: beside each file.")
]
PlaybooksOption = Annotated[bool, typer.Option("--playbooks", help="The playbooks instead of the checks.")]
LogsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOG|KEY=VALUE]...",
        help="Logs: files (.gz, too), directories of them, - for standard input; overrides of --config.",
        show_default=False,
    ),
]
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on reading what is being written, and say at once what went wrong.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Show what ranks lower, and what only follows from it, too.")]
ConfirmFactsOption = Annotated[
    Path | None, typer.Option("--facts", help="Confirm by a file of `rlcheck collect`, from the machine of the log.")
]
HereOption = Annotated[bool, typer.Option("--here", help="Confirm by this machine: the log was written here.")]
FixConfigOption = Annotated[
    str, typer.Option("--config", metavar="CONFIG", help="The run's config: settings are worded as its overrides.")
]
WaiveOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ID|FAMILY", help="Leave out a playbook, those of a check, or a family."),
]
WantedOption = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="ID|FAMILY", help="Only these playbooks, those of a check, or a family."),
]
StrictWarningsOption = Annotated[bool, typer.Option("--strict", help="Exit with 1 also for warnings.")]
SilenceOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="With --follow: end when so long nothing was written. With --here: longest time of one examination.",
    ),
]
