"""vLLM behind the engine protocol: one contract, one adapter per range of versions (`versions.py`)."""
