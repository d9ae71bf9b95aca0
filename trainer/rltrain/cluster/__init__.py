"""Where the run's processes live: placement on nodes, Ray, groups of workers, and their end."""
