"""The command of a fix ends the fault: plant it, run the doctor, run the fix that it prints, run the doctor again."""
