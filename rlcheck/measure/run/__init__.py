"""Metrics of finished and running trainings: read from files, filed under one set of names, looked at."""
