"""Diagnoses of logs in every format."""
