"""The tree policies that come with draftwood, and the classes that a new one may build on."""

from draftwood.strategies.policies.batch_dyspec import BatchDySpec
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec, GreedyTree
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.mixture import Mixture
from draftwood.strategies.policies.ordinary import Ordinary
from draftwood.strategies.policies.redrafter import BeamPaths
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.policies.svip import SVIP
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.strategies.policies.throughput_dyspec import ThroughputDySpec
from draftwood.strategies.policies.wrapper import PolicyWrapper

__all__ = [
    "SVIP",
    "BatchDySpec",
    "Beam",
    "BeamPaths",
    "Chain",
    "DySpec",
    "DynaTree",
    "DynamicDepth",
    "ExpandRerank",
    "FixedTree",
    "GreedyTree",
    "IndependentPaths",
    "LayeredDySpec",
    "Mixture",
    "Ordinary",
    "PolicyWrapper",
    "Sequoia",
    "StaticTree",
    "StochasticBeam",
    "ThresholdDySpec",
    "ThroughputDySpec",
]
