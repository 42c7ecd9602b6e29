"""`GivenCache`: keys and values that another call left, as the beginning of the texts of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.loop import RoundLoop


def filled_cache(model_kwargs: Mapping[str, Any]) -> Any:
    """Returns the transformers cache that holds tokens among what a model is called with, or None."""
    from transformers import Cache

    caches = (value for value in model_kwargs.values() if isinstance(value, Cache))
    return next((cache for cache in caches if _is_filled(cache)), None)


def _is_filled(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:  # it only has recurrent layers
        return bool(cache.has_previous_state())


def rounds_at_times(layer: Any) -> bool:
    """Returns whether a layer of a cache rounds its keys after every so many tokens, and none before."""
    from transformers.cache_utils import QuantizedLayer

    return isinstance(layer, QuantizedLayer)


def tokens_before_rounding(cache: Any, columns: int) -> int | None:
    """Returns how many tokens `generate()` writes with a cache before it reads keys that this call rounded.

    None: it rounds none. 0: it rounds them in its first pass.

    Args:
        cache: of transformers, which may be empty.
        columns: of the prompt.
    """
    from transformers import QuantizedCache

    own = getattr(cache, "self_attention_cache", cache)  # of an encoder-decoder
    layers = [layer for layer in getattr(own, "layers", ()) if rounds_at_times(layer)]
    if not (layers or isinstance(own, QuantizedCache)):
        return None
    if not _is_filled(cache):
        return 1  # it rounds the whole prompt once that was read
    unread = columns - GivenCache(cache, ()).columns
    # The first pass reads the rest of the prompt, and each later one the token before.
    exact = [layer.keys.shape[2] if layer.keys.dim() == 4 else 0 for layer in layers]
    left = [layer.residual_length - held for layer, held in zip(layers, exact, strict=True)]
    return max(min(left) - unread + 1, 1) if left else 0


@attrs.frozen(eq=False)
class GivenCache:
    """A transformers cache that holds the first columns of a padded batch.

    Attributes:
        cache: of the target, as `generate()` takes it; it is read and not changed.
        padding: columns before the text of every row, by its number.
    """

    cache: Any
    padding: Sequence[int]

    @property
    def columns(self) -> int:
        """Columns that it holds, padding included."""
        try:
            return int(self.cache.get_seq_length())
        except ValueError:  # it only has recurrent layers, and holds some tokens
            return 0

    def begin(self, loop: RoundLoop, rows: Sequence[BatchRow]) -> bool:
        """Let the target of `loop` hold the cached tokens of the rows, whose texts are unread.

        Returns:
            Whether the rows go on from there, which they do.

        Raises:
            InvalidInput: a cache that cannot be read, or that holds a whole text.
            UnsupportedModel: the target reads no caches.
        """
        columns = self.columns
        for row in rows:
            if (length := max(columns - self.padding[row.index], 0)) >= len(row.unread):
                raise InvalidInput(
                    f"past_key_values holds {length} tokens of row {row.index}, whose text has "
                    f"{len(row.unread)}; give the whole text as input_ids, with at least one token more "
                    "than the cache holds."
                )
        loop.target.take_over(self.cache, [max(columns - self.padding[row.index], 0) for row in rows])
        for row in rows:
            length = max(columns - self.padding[row.index], 0)
            row.go_on_after(length + 1, undrafted=row.unread[:length])
        return True
