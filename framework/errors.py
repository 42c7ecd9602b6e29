"""Every error that draftwood raises on purpose; `DraftwoodError` catches all of them."""

from draftwood.base.errors import (
    DraftwoodError,
    IncompatibleModels,
    IncompatibleStrategy,
    InvalidDistribution,
    InvalidInput,
    InvalidTree,
    OutOfMemory,
    UnknownStrategy,
    UnsupportedModel,
)

__all__ = [
    "DraftwoodError",
    "IncompatibleModels",
    "IncompatibleStrategy",
    "InvalidDistribution",
    "InvalidInput",
    "InvalidTree",
    "OutOfMemory",
    "UnknownStrategy",
    "UnsupportedModel",
]
