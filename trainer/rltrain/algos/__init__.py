"""The algorithms: pure functions on tensors, one file each, in explicit dicts.

Everywhere: B rows (samples), R response tokens (right-padded), `response_mask` bool `[B, R]`. What lies under a masked
position never reaches a result or a gradient, not even NaN. float32 in gives float32 out, float64 gives float64.
"""
