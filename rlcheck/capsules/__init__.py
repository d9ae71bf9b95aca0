"""Writers of step capsules for other trainers: the standard library and msgspec alone, whatever else is installed."""
