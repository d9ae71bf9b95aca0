"""Who a hung job waits for: flight-recorder dumps and stacks of its ranks, read without running any of their code."""
