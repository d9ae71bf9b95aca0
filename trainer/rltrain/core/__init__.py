"""What every room uses: the batch, tensors, clocks, progress, errors."""
