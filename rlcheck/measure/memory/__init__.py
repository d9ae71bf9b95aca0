"""The memory model of a run: plain arithmetic over a `RunSpec` and the sizes of its models."""
