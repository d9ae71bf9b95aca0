"""The data of a run, read by workers in the examined Python and put together here."""
