"""The command line: reading options, calling the doctor, printing the report."""
