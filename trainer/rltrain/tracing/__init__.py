"""What each operation of a model gave on one sequence, under names that engine and training share."""
