"""Record which errors the releases of the stack raise, and where: `rlcheck/data/raises`."""
