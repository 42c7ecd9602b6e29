"""The drafters that come with draftwood, and the classes that a new one may build on."""

from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.strategies.drafters.cached_suffixes import CachedSuffixes
from draftwood.strategies.drafters.depth_marginals import DepthMarginals
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.drafters.hydra import Hydra
from draftwood.strategies.drafters.layer_skip import LayerSkip
from draftwood.strategies.drafters.lookahead import Lookahead
from draftwood.strategies.drafters.lookup_first import LookupFirst
from draftwood.strategies.drafters.medusa import MedusaHeads
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.mtp import Mtp
from draftwood.strategies.drafters.named import Named
from draftwood.strategies.drafters.p_eagle import PEagle
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.retrieval import RetrievalDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.drafters.shared_tokens import SharedTokens
from draftwood.strategies.drafters.suffix_cache import SuffixCache
from draftwood.strategies.drafters.table import TableDrafter
from draftwood.strategies.drafters.token_map import TokenMap, token_texts
from draftwood.strategies.drafters.token_recycling import TokenRecycling
from draftwood.strategies.drafters.windowed import Windowed

__all__ = [
    "BlockDrafter",
    "CachedSuffixes",
    "DepthMarginals",
    "Eagle3",
    "Hydra",
    "LayerSkip",
    "Lookahead",
    "LookupFirst",
    "MedusaHeads",
    "ModelDrafter",
    "Mtp",
    "Named",
    "PEagle",
    "PromptLookup",
    "RetrievalDrafter",
    "Several",
    "SharedTokens",
    "SuffixCache",
    "TableDrafter",
    "TokenMap",
    "TokenRecycling",
    "Windowed",
    "token_texts",
]
