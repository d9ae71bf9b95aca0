"""What a fault is: one run with one mistake, and the finding that must come first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REWARDS = Path(__file__).with_name("rewards.py")
WITH_KL = (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.1")


@dataclass(frozen=True)
class Fault:
    """One run with one mistake."""

    name: str
    expected: tuple[str, ...]
    """Checks of which one must be the first finding. Empty: a healthy run, in which none may fail."""
    why: str
    recipe: str = "toy-ppo"
    overrides: tuple[str, ...] = ()
    mistake: str = ""
    """`NAME {arguments}` of `inject/bench_mistakes`; "": the overrides are the mistake."""
    kill_at: int = 0
    """SIGKILL to the run once it has written this step; 0: it may end."""
    plain: bool = False
    """Samples are written as the defaults have it: few."""
    extra: bool = False
    """A second way to make a mistake of the issue's list, or one of our own."""
