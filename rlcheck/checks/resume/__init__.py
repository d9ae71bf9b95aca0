"""Family RES: what a restarted run goes on from."""
