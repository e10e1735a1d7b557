"""Configs: typed, frozen, composed by name; read from YAML and `path=value`, never running code."""

from ganglion.config.files import cases, dump, load, resolve
from ganglion.config.model import (
    AlgoConfig,
    BonusConfig,
    BufferConfig,
    Config,
    EnvConfig,
    Fold,
    LimiterConfig,
    NetConfig,
    Part,
    ProcessorConfig,
    Schedule,
    WriterConfig,
)
from ganglion.config.run import EvalSection, FleetSection, LogSection, RunConfig, RunSection, SaveSection, TrainSection
from ganglion.config.schedules import Amount, RateSchedule, Share, constant, cosine, exponential, linear, piecewise
from ganglion.config.values import Count, Every, NonNegative, Positive, Rate, Real, every
from ganglion.registry import register

__all__ = [
    "AlgoConfig",
    "Amount",
    "BonusConfig",
    "BufferConfig",
    "Config",
    "Count",
    "EnvConfig",
    "EvalSection",
    "Every",
    "FleetSection",
    "Fold",
    "LimiterConfig",
    "LogSection",
    "NetConfig",
    "NonNegative",
    "Part",
    "Positive",
    "ProcessorConfig",
    "Rate",
    "RateSchedule",
    "Real",
    "RunConfig",
    "RunSection",
    "SaveSection",
    "Schedule",
    "Share",
    "TrainSection",
    "WriterConfig",
    "cases",
    "constant",
    "cosine",
    "dump",
    "every",
    "exponential",
    "linear",
    "load",
    "piecewise",
    "register",
    "resolve",
]
