"""Checks of family SYS: limits, memory, processors, disks, container, tool chain, environment."""
