"""The measuring plug-in `smoke`: one step on a cut-down batch."""
