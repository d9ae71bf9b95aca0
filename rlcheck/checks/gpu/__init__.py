"""Checks of family GPU: drivers, GPUs and their health, NVIDIA and AMD."""
