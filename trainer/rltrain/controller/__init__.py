"""The process that runs the training loop and tells the workers what to do."""
