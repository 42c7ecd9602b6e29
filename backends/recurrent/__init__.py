"""Recurrent layers of models: what they keep during decoding, and the mixers that stand for them.

For your own layer: a `Mixer` over one of the states here or your `Recurrence`, registered under
`draftwood.mixers` by the name of the layer's class. `docs/tutorials/recurrent-layer.md` adds one.
"""

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.gated_delta import GatedDeltaState
from draftwood.backends.recurrent.key_decay import KeyDecayDeltaState, KeyDecayState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.lru import LRUState
from draftwood.backends.recurrent.mamba1 import Mamba1State
from draftwood.backends.recurrent.mamba2 import Mamba2State
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.recurrence import Recurrence
from draftwood.backends.recurrent.states import States

__all__ = [
    "ConvState",
    "GatedDeltaState",
    "KeyDecayDeltaState",
    "KeyDecayState",
    "LRUState",
    "LayerState",
    "Mamba1State",
    "Mamba2State",
    "Mixer",
    "Pass",
    "Recurrence",
    "States",
    "Vectors",
    "grown",
    "precise",
]
