"""Many machines from one place: agents on them, what each of them is, and whether they reach each other."""
