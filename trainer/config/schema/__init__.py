"""The shape of a run config: frozen pydantic models, one section a class, verl's key names. Imports no torch."""

from trainer.config.schema.actor import ActorConfig, ActorRolloutRefConfig, CriticConfig, LossAggMode, RefConfig
from trainer.config.schema.algorithm import AdvEstimator, AlgorithmConfig, KlCtrlConfig, RolloutCorrectionConfig
from trainer.config.schema.base import Section
from trainer.config.schema.data import DataConfig, SftWarmupConfig, ToyConfig
from trainer.config.schema.model import FsdpConfig, ModelConfig, OptimConfig, Precision
from trainer.config.schema.reward import CustomRewardFunctionConfig, RewardModelConfig, RewardRule
from trainer.config.schema.rollout import RolloutConfig, ValKwargs
from trainer.config.schema.run import RayKwargsConfig, RunConfig, TrainerConfig

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
