"""All runs of the bench: those with a mistake, and the healthy ones."""

from __future__ import annotations

from tests.bench.faults.fault import Fault
from tests.bench.faults.healthy import CHOICES, SEEDS
from tests.bench.faults.optimisation import OPTIMISATION, SYSTEM
from tests.bench.faults.rollout import MISMATCH, SYNC
from tests.bench.faults.signal import SIGNAL
from tests.bench.faults.subtle import SUBTLE, SUBTLE_HEALTHY

FAULTS = (*SYNC, *MISMATCH, *SIGNAL, *OPTIMISATION, *SYSTEM)
HEALTHY = (*SEEDS, *CHOICES)

__all__ = ["FAULTS", "HEALTHY", "SUBTLE", "SUBTLE_HEALTHY", "Fault"]
