"""Looks at the processes of a running job on this node, without stopping any of them for long."""
