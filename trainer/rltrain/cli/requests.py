"""What each command can be asked: a dataclass, whose fields are its options and whose docstring is its help."""

# No `from __future__ import annotations`: `rlcheck.cli.declare` reads the annotations as values.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from rltrain.core.errors import UserError
from rltrain.recipes import SFT_RECIPES, recipe_names

_RECIPES = ", ".join(reversed(recipe_names()))
_SFT_RECIPES = ", ".join(recipe_names(SFT_RECIPES))
CheckpointArgument = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint of a run: RUN_DIR/checkpoints/global_step_N.")
]


OverridesArgument = Annotated[
    tuple[str, ...],
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Values that replace those of CONFIG: trainer.seed=7. ~KEY removes one."
    ),
]
IgnoreOption = Annotated[
    tuple[str, ...],
    typer.Option("--ignore", metavar="ID", help="Waive a check: it no longer stops the run. Repeatable."),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Print config, placement, batch arithmetic and memory. Needs no GPU and no Ray."),
]
SkipOption = Annotated[
    bool, typer.Option("--skip-checks", help="Do not check the machine; problems then show late, on held GPUs.")
]


class _Paths:
    """A request that refuses paths which cannot be used, before torch is imported."""

    def __post_init__(self) -> None:
        from rltrain.config.paths import unusable
        from rltrain.records.checkpoints import at

        for name, path in vars(self).items():
            if isinstance(path, Path):
                if (why := unusable(path)) is not None:
                    raise UserError(why)
                try:
                    there = path.expanduser().absolute()
                except RuntimeError as error:
                    raise UserError(f"{path}: {error}") from None
                if name == "checkpoint":
                    at(there)


class Extent(str, Enum):
    """How much of rlcheck's chain of checks goes before a run."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True)
class RunRequest:
    """Check this machine and CONFIG, then train.

    Everything that the run writes goes to trainer.default_local_dir.
    """

    COMMAND: ClassVar[str] = "run"
    source: Annotated[str, typer.Argument(metavar="CONFIG", help=f"Recipe ({_RECIPES}) or YAML file.")]
    overrides: OverridesArgument = ()
    dry_run: DryRunOption = False
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="GPU", help="With --dry-run: GPU to plan for, H200 or 80GiB. Default: this machine's."
        ),
    ] = ""
    speeds: Annotated[
        str,
        typer.Option(
            "--speeds",
            metavar="RUN_DIR",
            help="With --dry-run: run whose answer lengths and speeds say what asynchrony would give. "
            "Default: an earlier run in the run directory.",
        ),
    ] = ""
    ignore: IgnoreOption = ()
    skip_checks: SkipOption = False
    capsule: Annotated[
        tuple[int, ...],
        typer.Option("--capsule", metavar="STEP", help="Keep a capsule of STEP, for rlcheck step. Repeatable."),
    ] = ()
    preflight: Annotated[
        Extent,
        typer.Option(
            "--preflight", help="Extent of the checks; full adds collectives, the engine and one step (minutes)."
        ),
    ] = Extent.QUICK


@dataclass(frozen=True)
class SftRequest:
    """Check this machine and CONFIG, then train a model on given conversations or answers (supervised).

    Everything that is written goes to trainer.default_local_dir.
    """

    COMMAND: ClassVar[str] = "sft"
    source: Annotated[str, typer.Argument(metavar="CONFIG", help=f"Recipe ({_SFT_RECIPES}) or YAML file.")]
    overrides: OverridesArgument = ()
    dry_run: DryRunOption = False
    ignore: IgnoreOption = ()
    skip_checks: SkipOption = False


@dataclass(frozen=True)
class EvalRequest(_Paths):
    """Score a checkpoint on the validation prompts of its run: mean reward and pass@k, each with its 95 % interval."""

    checkpoint: CheckpointArgument
    overrides: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those of the run's config."),
    ] = ()
    n: Annotated[
        int, typer.Option("--n", min=1, metavar="N", help="Answers per prompt: 1 is greedy, more are sampled.")
    ] = 1
    ks: Annotated[tuple[int, ...], typer.Option("--k", metavar="K", help="Print pass@K. Repeatable. Default: 1.")] = ()
    passing: Annotated[float, typer.Option("--pass", metavar="REWARD", help="Lowest reward that counts as right.")] = (
        1.0
    )


@dataclass(frozen=True)
class ExportRequest(_Paths):
    """Write the actor of a checkpoint as safetensors, for AutoModelForCausalLM.from_pretrained."""

    checkpoint: CheckpointArgument
    output: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the model, new or empty.")]


@dataclass(frozen=True)
class InitRequest(_Paths):
    """Write a config to start from: every key, its default and what it does."""

    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; it must not exist.")] = Path(
        "rltrain.yaml"
    )
