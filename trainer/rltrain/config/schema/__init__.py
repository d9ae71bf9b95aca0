"""The shape of a run config: frozen pydantic models, one section a class, verl's key names. Imports no torch."""

from rltrain.config.schema.actor import ActorConfig, ActorRolloutRefConfig, CriticConfig, LossAggMode, RefConfig
from rltrain.config.schema.algorithm import AdvEstimator, AlgorithmConfig, KlCtrlConfig, RolloutCorrectionConfig
from rltrain.config.schema.base import Section
from rltrain.config.schema.data import DataConfig, SftWarmupConfig, ToyConfig
from rltrain.config.schema.model import FsdpConfig, ModelConfig, OptimConfig, Precision
from rltrain.config.schema.reward import CustomRewardFunctionConfig, RewardModelConfig, RewardRule
from rltrain.config.schema.rollout import RolloutConfig, ValKwargs
from rltrain.config.schema.run import RayKwargsConfig, RunConfig, TrainerConfig

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AdvEstimator",
    "AlgorithmConfig",
    "CriticConfig",
    "CustomRewardFunctionConfig",
    "DataConfig",
    "FsdpConfig",
    "KlCtrlConfig",
    "LossAggMode",
    "ModelConfig",
    "OptimConfig",
    "Precision",
    "RayKwargsConfig",
    "RefConfig",
    "RewardModelConfig",
    "RewardRule",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "Section",
    "SftWarmupConfig",
    "ToyConfig",
    "TrainerConfig",
    "ValKwargs",
]
