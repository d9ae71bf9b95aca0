"""What runs elsewhere than in the doctor: scripts for child processes, and the scanner of Python environments."""
