"""Training ranks of a replay, of which one computes wrongly."""

from __future__ import annotations

import os
from typing import Any

import torch

from rltrain.measure.replay.worker import ReplayTrainWorker

FIRST = "RLTRAIN_TEST_FIRST_DEVICE"
"""Names a file; the process that makes it is whole, the others have the fault."""
MODULE = "model.layers.1.mlp.up_proj"


def one_ulp(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """OUTPUT with its last number moved by one unit in the last place."""
    last = output.detach().reshape(-1)[-1]
    step = torch.zeros_like(output).reshape(-1)
    step[-1] = torch.nextafter(last, torch.tensor(float("inf"))) - last
    return output + step.view_as(output)


class OneComputesWrongly(ReplayTrainWorker):
    """From the second process on, one multiplication is off by an ulp."""

    def setup(self, total_steps: int) -> dict[str, Any]:
        """See `TrainWorker.setup`."""
        facts = super().setup(total_steps)
        try:
            os.close(os.open(os.environ[FIRST], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self._models["actor"].model.get_submodule(MODULE).register_forward_hook(one_ulp)
        return facts
