"""rlcheck: a doctor for LLM reinforcement-learning training.

The public surface is the command line (`rlcheck --help`) and, for plug-ins, the names in `rlcheck.doctor.plugins`.
"""

__version__ = "0.1.0"
