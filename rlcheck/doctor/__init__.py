"""The doctor: which checks and probes there are, one examination from facts to report, fixes, settings, plug-ins."""
