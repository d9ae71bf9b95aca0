"""The way to a Ray head: names, routes, ports, what speaks there, and the GCS without Ray."""
