"""Reads the rows of data files in the examined Python and says what is wrong with them, part by part.

Sent there as text (see `rlcheck/measure/cluster/program.py`). Parquet and Arrow need pyarrow there, prompt lengths need
transformers; everything else is the standard library.
"""
