"""Names of number formats in a run config, and torch's."""

from __future__ import annotations

import torch

from rltrain.config.schema.model import Precision
from rltrain.core.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_dtype(precision: Precision) -> torch.dtype:
    """Torch's dtype for PRECISION, which must be resolved: not "auto"."""
    return DTYPES[precision]


def training_dtype(precision: Precision, key: str) -> torch.dtype:
    """As `to_dtype`, for what gradients flow through; KEY names it in the error.

    Raises:
        UserError: float16, whose small gradients vanish without loss scaling.
    """
    if precision == "float16":
        raise UserError(f"{key}=float16: gradients underflow without loss scaling; use bfloat16 or float32")
    return to_dtype(precision)
