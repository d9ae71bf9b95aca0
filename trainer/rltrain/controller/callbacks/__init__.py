"""What watches a run: metrics on disk and on the screen, samples, validation, checkpoints."""

from rltrain.controller.callbacks.base import Callback, Callbacks, RunInfo, StepRecord

__all__ = ["Callback", "Callbacks", "RunInfo", "StepRecord"]
