"""Policy losses by name (`actor.policy_loss.loss_mode`): loss of each token, before `aggregate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from rltrain.algos.policy_losses.cispo import cispo
from rltrain.algos.policy_losses.gspo import gspo
from rltrain.algos.policy_losses.inputs import PolicyLossInputs
from rltrain.algos.policy_losses.reinforce import reinforce
from rltrain.algos.policy_losses.vanilla import vanilla

PolicyLoss = Callable[[PolicyLossInputs], tuple[Tensor, dict[str, Tensor]]]

POLICY_LOSSES: Mapping[str, PolicyLoss] = {"vanilla": vanilla, "gspo": gspo, "cispo": cispo}

__all__ = ["POLICY_LOSSES", "PolicyLoss", "PolicyLossInputs", "reinforce"]
