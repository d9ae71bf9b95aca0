"""Examines the interpreter that runs it, with the standard library alone, on Python 3.8 and later.

The doctor calls `main.scan` in its own process for its own interpreter, and sends these sources to any other one.
"""
