"""An error that no playbook knows, explained by the source of the installed library that raised it; nothing is run."""
