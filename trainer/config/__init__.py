"""Run configs: read, completed and checked before anything starts. Imports neither torch nor Ray."""

from trainer.config.batch_plan import BatchPlan
from trainer.config.load import Loaded, load, load_with_notes
from trainer.config.notes import notes
from trainer.config.resolve import Machine, resolve
from trainer.config.rules import check
from trainer.config.schema import RunConfig
from trainer.config.source import recipe_names

__all__ = [
    "BatchPlan",
    "Loaded",
    "Machine",
    "RunConfig",
    "check",
    "load",
    "load_with_notes",
    "notes",
    "recipe_names",
    "resolve",
]
