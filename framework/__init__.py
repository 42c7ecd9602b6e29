"""draftwood: lossless speculative decoding with draft trees, for any model.

The four protocols are `Drafter`, `TreePolicy`, `Verifier` and `StateBackend`; `SpeculativeDecoder` is
the loop that drives them.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# In a source checkout the other layers are next to this folder, in an installed wheel below it. Python then
# finds `draftwood.kernels` by path: that folder must stay without an `__init__.py`, or it would be taken for
# Hugging Face's package of the same name when the checkout is on `sys.path`.
_here = Path(__file__).resolve().parent
if _here.name == "framework":
    __path__.append(str(_here.parent))

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
from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.decoding.generation import Generation
from draftwood.decoding.measured_costs import measure_costs
from draftwood.decoding.round_records import Round, RowRecord, Statistics, TokenDetails
from draftwood.decoding.row_queue import QueuedText, RowQueue
from draftwood.decoding.session import Session
from draftwood.decoding.shared_decoder import SharedDecoder, SharedText
from draftwood.decoding.text_options import TextOptions
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams
from draftwood.integrations.custom_generate import custom_generate
from draftwood.laws.proposals import (
    ANY_LAW,
    Deterministic,
    DrawnChildren,
    PerChild,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.laws.randomness import CounterRandomness, Randomness, Streams, TapeRandomness
from draftwood.laws.set_laws import FixedTimeSet
from draftwood.methods.recipe import Recipe
from draftwood.methods.tuned_method import TunedMethod, read_tuned
from draftwood.protocols import (
    ArrayPolicy,
    BatchPolicy,
    Drafter,
    LearningPolicy,
    StateBackend,
    TreePolicy,
    Verifier,
)
from draftwood.protocols.model_prompt import ModelPrompt, PromptRow
from draftwood.protocols.pass_costs import PassCosts, PassTable
from draftwood.protocols.registry import create, load
from draftwood.protocols.row_view import RowView
from draftwood.trees.growth import WAIT, Growing, Growth, Wait
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Request, RequestLog, Requests
from draftwood.trees.row_trees import GrowingRows, Layer, LayerChildren, RowTrees
from draftwood.trees.siblings import Opening, Siblings
from draftwood.trees.tree import TokenTree, TreeBuilder
from draftwood.trees.tree_batch import TreeBatch

try:
    __version__ = version("draftwood")
except PackageNotFoundError:  # a source tree that was put on the path without being installed
    __version__ = "0+unknown"

__all__ = [
    "ANY_LAW",
    "WAIT",
    "ArrayPolicy",
    "BatchPolicy",
    "Constraint",
    "CounterRandomness",
    "Deterministic",
    "Drafter",
    "DraftwoodError",
    "DrawnChildren",
    "FixedTimeSet",
    "Generation",
    "Growing",
    "GrowingRows",
    "Growth",
    "IncompatibleModels",
    "IncompatibleStrategy",
    "InvalidDistribution",
    "InvalidInput",
    "InvalidTree",
    "Layer",
    "LayerChildren",
    "LearningPolicy",
    "LevelPlan",
    "Levels",
    "ModelPrompt",
    "Opening",
    "OutOfMemory",
    "Outcome",
    "PassCosts",
    "PassTable",
    "PerChild",
    "PromptRow",
    "Proposal",
    "QueuedText",
    "Randomness",
    "Recipe",
    "Request",
    "RequestLog",
    "Requests",
    "Round",
    "RowQueue",
    "RowRecord",
    "RowTrees",
    "RowView",
    "SamplingParams",
    "Session",
    "SharedDecoder",
    "SharedText",
    "Siblings",
    "SpeculativeDecoder",
    "StateBackend",
    "Statistics",
    "Streams",
    "TapeRandomness",
    "TextOptions",
    "TokenDetails",
    "TokenTree",
    "TopThenSample",
    "TreeBatch",
    "TreeBuilder",
    "TreePolicy",
    "TunedMethod",
    "UnknownStrategy",
    "UnsupportedModel",
    "Verifier",
    "Wait",
    "WithReplacement",
    "WithoutReplacement",
    "create",
    "custom_generate",
    "draw_children",
    "load",
    "measure_costs",
    "read_tuned",
]
