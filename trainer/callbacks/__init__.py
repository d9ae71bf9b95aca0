"""What watches a run: metrics on disk and on the screen, samples, validation, checkpoints."""

from trainer.callbacks.base import Callback, Callbacks, Metrics, RunInfo, StepRecord

__all__ = ["Callback", "Callbacks", "Metrics", "RunInfo", "StepRecord"]
