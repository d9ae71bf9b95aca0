"""Numbers and symbols in words, by topic. Each module has `DECODERS`."""
