"""Commands that read a run: config, memory-profile, data, rollout, drift, run. Each imports its module when it runs."""

from __future__ import annotations

import typer

from rlcheck.cli import options as opt


def config(
    config: opt.ConfigArgument = "",
    overrides: opt.OverridesArgument = None,
    framework: opt.FrameworkOption = "auto",
    no_fs: opt.NoFsOption = False,
    model_shape: opt.ModelShapeOption = "",
    config_name: opt.ConfigNameOption = "",
    config_path: opt.ConfigPathOption = "",
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Check the config of a run before it starts: every rule that it would trip over, all at once."""
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.config import ConfigRequest, run_config
    from rlcheck.cli.hydra_options import named

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    source, words = named(config, tuple(overrides or ()), config_name, config_path)
    raise typer.Exit(run_config(ConfigRequest(report, source, words, framework, not no_fs, model_shape)))


def memory_profile(
    config: opt.ConfigArgument = "",
    overrides: opt.OverridesArgument = None,
    gpu: opt.GpuOption = "",
    gpu_mem: opt.GpuMemoryOption = "",
    host_mem: opt.HostMemoryOption = "",
    nodes: opt.RunNodesOption = 0,
    gpus_per_node: opt.RunGpusOption = 0,
    model_shape: opt.ModelShapeOption = "",
    framework: opt.FrameworkOption = "auto",
    config_name: opt.ConfigNameOption = "",
    config_path: opt.ConfigPathOption = "",
    plot: opt.MemoryPlotOption = None,
    measure: opt.MeasureOption = False,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Predict the memory of a run, phase by phase: does it fit, how much would, what to change. No GPU needed."""
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.hydra_options import named
    from rlcheck.cli.memory_profile import ProfileRequest, run_memory_profile

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    source, words = named(config, tuple(overrides or ()), config_name, config_path)
    machine = (gpu, gpu_mem, host_mem, nodes, gpus_per_node)
    request = ProfileRequest(report, source, words, *machine, model_shape, framework, plot, measure)
    raise typer.Exit(run_memory_profile(request))


def data(
    words: opt.DataArgument = None,
    config: opt.DataConfigOption = "",
    val: opt.ValOption = None,
    tokenizer: opt.TokenizerOption = "",
    prompt_key: opt.PromptKeyOption = "",
    framework: opt.FrameworkOption = "auto",
    first: opt.FirstOption = 5,
    fix: opt.CleanOption = False,
    dry_run: opt.CleanDryRunOption = False,
    yes: opt.CleanYesOption = False,
    out: opt.OutOption = None,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Read every row of the data: form, prompts, answers, lengths, duplicates, leaks; each with its line and field."""
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.data import DataRequest, run_data

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    what = (tuple(words or ()), config, tuple(val or ()), tokenizer, prompt_key, framework, first)
    raise typer.Exit(run_data(DataRequest(report, *what, fix, dry_run, yes, out)))


def rollout(
    target: opt.RolloutArgument = "",
    overrides: opt.OverridesArgument = None,
    framework: opt.FrameworkOption = "auto",
    start_timeout: opt.StartTimeoutOption = 600.0,
    random_weights: opt.RandomWeightsOption = False,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Start the rollout engine of a config, or ask a running server: speed, log-probabilities, stops, lengths, sleep.

    A key for a server is read from RLCHECK_API_KEY, VLLM_API_KEY or SGLANG_API_KEY.
    """
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.rollout import RolloutRequest, run_rollout

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    request = RolloutRequest(report, target, tuple(overrides or ()), framework, start_timeout, random_weights)
    raise typer.Exit(run_rollout(request))


def drift(
    target: opt.DriftArgument = "",
    overrides: opt.OverridesArgument = None,
    framework: opt.FrameworkOption = "auto",
    num_prompts: opt.NumPromptsOption = 0,
    random_weights: opt.RandomWeightsOption = False,
    try_all: opt.TryAllOption = False,
    operations: opt.OperationsOption = False,
    batch_invariant: opt.BatchInvariantOption = False,
    start_timeout: opt.StartTimeoutOption = 900.0,
    budget: opt.BudgetOption = 600.0,
    plot: opt.DriftPlotOption = None,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Does the policy learn from what it did? Log-probabilities of the rollout engine against the training side's.

    With a CONFIG both sides are started, compared, and the cause is searched; a RUN_DIR is only read.
    """
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.drift import DriftRequest, run_drift

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    what = (num_prompts, random_weights, try_all, operations, batch_invariant, start_timeout, budget)
    raise typer.Exit(run_drift(DriftRequest(report, target, tuple(overrides or ()), framework, *what, plot)))


def run(
    run_dir: opt.RunDirArgument = "",
    watch: opt.WatchOption = False,
    interval: opt.IntervalOption = 5.0,
    stall_s: opt.StallOption = 600.0,
    start_timeout: opt.FirstStepOption = 1800.0,
    compare: opt.CompareOption = "",
    html: opt.HtmlOption = None,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.RunTimeoutOption = None,
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Judge a running or finished training run by its metrics and samples: what is wrong first, since which step.

    As a guard in a script: rlcheck run DIR --watch || scancel $JOB
    """
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.run import RunRequest, run_run

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, "", verbose, ascii_only)
    raise typer.Exit(run_run(RunRequest(report, run_dir, watch, interval, stall_s, start_timeout, compare, html)))
