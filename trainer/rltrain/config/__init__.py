"""Run configs: read, completed and checked before anything starts. Imports neither torch nor Ray."""

from rltrain.config.batch_plan import BatchPlan
from rltrain.config.load import Loaded, load, load_with_notes
from rltrain.config.notes import notes
from rltrain.config.resolve import Machine, resolve
from rltrain.config.rules import check
from rltrain.config.schema import RunConfig

__all__ = [
    "BatchPlan",
    "Loaded",
    "Machine",
    "RunConfig",
    "check",
    "load",
    "load_with_notes",
    "notes",
    "resolve",
]
