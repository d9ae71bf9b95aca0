"""The measuring plug-in `replay`: a captured step, run again by the trainer itself and compared bit by bit."""
