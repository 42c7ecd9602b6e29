"""The verifiers that come with draftwood, and the classes that a new one may build on."""

from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.greedy_multi_path import GreedyMultiPath
from draftwood.strategies.verifiers.k_sequential import KSequential
from draftwood.strategies.verifiers.node_wise import NodeWise
from draftwood.strategies.verifiers.optimal_iid import OptimalIID
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.sample_and_match import SampleAndMatch
from draftwood.strategies.verifiers.top_plus_one import TopPlusOne
from draftwood.strategies.verifiers.top_plus_one_traversal import TopPlusOneTraversal
from draftwood.strategies.verifiers.transport_block import TransportBlock
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.typical import Typical
from draftwood.strategies.verifiers.walk import TreeWalk

__all__ = [
    "Block",
    "ClassOrderedRejection",
    "ClassOrderedTraversal",
    "Greedy",
    "GreedyMultiPath",
    "KSequential",
    "NodeWise",
    "OptimalIID",
    "RaceTraversal",
    "RecursiveRejection",
    "SampleAndMatch",
    "TopPlusOne",
    "TopPlusOneTraversal",
    "TransportBlock",
    "Traversal",
    "TreeWalk",
    "Typical",
]
