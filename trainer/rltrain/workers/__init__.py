"""What runs in the workers' processes: training ranks, rollout engines, weight sync."""
