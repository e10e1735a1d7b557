"""Settings: typed, frozen, composed by name. `config.files` reads them from YAML and `path=value`, and runs no code."""

from ganglion.config.model import (
    FRESH,
    AlgoConfig,
    BonusConfig,
    BufferConfig,
    Config,
    EnvConfig,
    Fold,
    LimiterConfig,
    MatchmakerConfig,
    NetConfig,
    Part,
    ProcessorConfig,
    RelabelConfig,
    ResetsConfig,
    Schedule,
    WrapperConfig,
    WriterConfig,
)
from ganglion.config.run import (
    DataSection,
    EvalSection,
    FleetSection,
    LogSection,
    RunConfig,
    RunSection,
    SaveSection,
    TrainSection,
)
from ganglion.config.schedules import Amount, RateSchedule, Share, constant, cosine, exponential, linear, piecewise
from ganglion.config.values import Count, Every, NonNegative, Positive, Rate, Real, every
from ganglion.registry import register

__all__ = [
    "FRESH", "AlgoConfig", "Amount", "BonusConfig", "BufferConfig", "Config", "Count", "DataSection", "EnvConfig",
    "EvalSection", "Every", "FleetSection", "Fold", "LimiterConfig", "LogSection", "MatchmakerConfig", "NetConfig",
    "NonNegative", "Part", "Positive", "ProcessorConfig", "Rate", "RateSchedule", "Real", "RelabelConfig",
    "ResetsConfig", "RunConfig", "RunSection", "SaveSection", "Schedule", "Share", "TrainSection", "WrapperConfig",
    "WriterConfig", "constant", "cosine", "every", "exponential", "linear", "piecewise", "register",
]  # fmt: skip
