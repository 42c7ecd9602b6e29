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
