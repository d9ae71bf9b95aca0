"""A task, data, tokenizer and model made on the spot: nothing is downloaded."""
