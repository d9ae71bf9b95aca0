"""The measuring plug-in `rollout`: a config's engine, started and tried."""
