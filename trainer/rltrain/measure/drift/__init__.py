"""The measuring plug-in `drift`: both sides of a config on the same tokens."""
