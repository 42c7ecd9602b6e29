"""P-EAGLE: an EAGLE-3 head that guesses all depths in one pass, and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.utils.rnn import pad_sequence

from draftwood import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.heads import safeailab, speculators
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.copied import guesses_at_once
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.files import check_no_model, read_description, read_tensors, write_head
from draftwood.strategies.heads.formats import in_file, load_weights, with_usual_names
from draftwood.strategies.heads.keys import whole_number
from draftwood.strategies.heads.pairs import grouped_attention
from draftwood.strategies.heads.sizes import check_guesses, check_held, check_taps
from draftwood.strategies.heads.vocabulary import maps_of, target_ids_of

KIND = "peagle"
_MASKS = ("mask_token_id", "ptd_token_id", "pard_token")  # the first is speculators', others are engines'
_DEPTHS = ("num_depths", "parallel_drafting")  # NeMo AutoModel's
Known = list[tuple[Tensor, Tensor]]
"""By layer the keys and values of the pairs of a text, each `[length, heads, width]`."""


@attrs.frozen(kw_only=True)
class PEagleConfig:
    """A P-EAGLE head.

    Attributes:
        head: the EAGLE-3 head that it is otherwise.
        mask_token_id: the token of pairs that stand for what is not drafted yet.
        depths: tokens that a pass guesses.
    """

    head: Eagle3Config
    mask_token_id: int = attrs.field(default=0, validator=at_least(0))
    depths: int = attrs.field(default=8, validator=at_least(1))

    def __attrs_post_init__(self) -> None:
        check_guesses("speculative_tokens", self.depths)
        if self.mask_token_id >= self.head.vocab_size:
            raise InvalidInput(
                f"The head's mask_token_id is {self.mask_token_id}, and its target has "
                f"{self.head.vocab_size} tokens; one of the two in its config is wrong."
            )


class _AfterKnown:
    """Attention of a pass's pairs to those known of their row, and to the pass's up to themselves.

    Attributes:
        new: by layer the keys and values of the pass's own pairs, `[rows, n, heads, width]`.
    """

    new: Known

    def __init__(self, known: Known, seen: Tensor) -> None:
        """`known` is by layer, `[rows, longest, heads, width]`; `seen` is bool `[rows, n, longest + n]`."""
        self._known, self._seen = known, seen
        self.new = []

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        self.new.append((keys.transpose(1, 2), values.transpose(1, 2)))
        old_keys, old_values = (known.transpose(1, 2) for known in self._known[layer])
        return torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        return grouped_attention(queries, keys, values, self._seen, scale=scale)


class PEagleHead(Module):
    """A P-EAGLE head with the parameters of `config`.

    It reads pairs as an EAGLE-3 head does. Where the next token is not known, a pair holds the mask token and
    what `mask_hidden` is projected to, in place of a recycled state: so no depth waits for the one before.

    Source: P-EAGLE, as speculators trains it.
    """

    def __init__(self, config: PEagleConfig, *, target_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.head = Eagle3Head(config.head, target_ids=target_ids)
        self.mask_hidden = Parameter(torch.zeros(1, 1, self.head.fc.weight.shape[1]))

    @property
    def all_tokens(self) -> bool:
        """Whether it proposes all tokens of its target."""
        return self.head.all_tokens

    @property
    def target_ids(self) -> Tensor:
        """The target's tokens that its own stand for."""
        return self.head.target_ids

    @property
    def max_positions(self) -> int | None:
        """The number of positions that its file names; None where it names none."""
        return self.head.max_positions

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the layers that are tapped; see `Eagle3Config.taps_in`."""
        return self.head.taps_in(layers)

    def masked(self) -> Tensor:
        """Returns the state `[hidden_size]` that is paired with the mask token."""
        return self.head.project(self.mask_hidden.flatten())

    def read(
        self, embeddings: Tensor, states: Tensor, known: Sequence[Known], counts: Sequence[int]
    ) -> tuple[Tensor, list[Known]]:
        """Read pairs after the known ones, each one seeing all before it.

        Args:
            embeddings: of the tokens, `[rows, n, hidden_size]`.
            states: paired with them, likewise.
            known: of every row; none where it has no pair yet.
            counts: how many pairs of every row are no padding.

        Returns:
            States `[rows, n, hidden_size]`, for `head.logits`, and of every row the keys and values of its
            new pairs.
        """
        device, count = states.device, states.shape[1]
        layers = self.config.head.layers
        blanks = [states.new_zeros(0, heads // layers, width) for heads, width in self.config.head.kept]
        lengths = torch.tensor([len(row[0][0]) if row else 0 for row in known], device=device)
        longest = int(lengths.max())
        place = torch.arange(count, device=device)
        seen = torch.cat(
            [
                (torch.arange(longest, device=device) < lengths.unsqueeze(1))
                .unsqueeze(1)
                .expand(-1, count, -1),
                (place <= place.unsqueeze(1)).expand(len(states), -1, -1),
            ],
            2,
        )
        padded = [
            [
                pad_sequence([row[layer][part] if row else blank for row in known], batch_first=True)
                for part, blank in enumerate(blanks)
            ]
            for layer in range(layers)
        ]
        attention = _AfterKnown([(keys, values) for keys, values in padded], seen)
        out = self.head.step(embeddings, states, lengths.unsqueeze(1) + place, attention)
        rows = [
            [(keys[row, :some], values[row, :some]) for keys, values in attention.new]
            for row, some in enumerate(counts)
        ]
        return out, rows


def is_peagle(folder: str | PathLike[str]) -> bool:
    """Returns whether the description in `folder` is that of a P-EAGLE head, readable or not."""
    try:
        description = read_description(folder)
    except InvalidInput:
        return False
    kind = description.get("speculators_model_type")
    return kind == KIND if kind is not None else guesses_at_once(description)


def load_peagle(
    folder: str | PathLike[str], *, mask_token_id: int | None = None, taps: tuple[int, ...] | None = None
) -> PEagleHead:
    """Returns the P-EAGLE head in `folder`, in the dtype in which it is stored.

    Args:
        folder: in speculators' or SpecForge's format.
        mask_token_id: where its description, as SpecForge's, does not say it.
        taps: layers of the target by their input, in place of those that the description names.

    Raises:
        InvalidInput: as `heads.formats.load_head`.
    """
    where = repr(str(folder))
    check_no_model(folder)
    description, stored = read_description(folder), with_usual_names(read_tensors(folder), where=where)
    config = described(description, stored, where, mask_token_id=mask_token_id, taps=taps)
    check_taps(taps, stored, width=config.head.target_hidden_size, where=where)
    check_held(config.head.sizes, stored, vocabulary=config.head.vocab_size, where=where)
    ids = target_ids_of(
        stored.pop("d2t", None),
        stored.pop("t2d", None),
        proposed=config.head.draft_vocab_size,
        vocabulary=config.head.vocab_size,
        where=where,
    )
    with torch.device("meta"):
        head = PEagleHead(config, target_ids=ids)
    first = safeailab.prefix_of(stored)
    load_weights(head, stored, {_in_file(name, first): name for name in head.state_dict()}, where=where)
    return head


def save_peagle(head: PEagleHead, folder: str | PathLike[str], *, target: str) -> None:
    """Write `head` in speculators' format; `target` names the model that it was made for."""
    tensors = {_in_file(name, speculators.LAYER): tensor for name, tensor in head.state_dict().items()}
    if not head.head.all_tokens:
        tensors |= maps_of(head.head.target_ids, head.config.head.vocab_size)
    write_head(folder, description_of(head.config, target=target), tensors)


def described(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    mask_token_id: int | None = None,
    taps: tuple[int, ...] | None = None,
) -> PEagleConfig:
    """Returns the head that a description of speculators or SpecForge, and its tensors, speak of.

    Raises:
        InvalidInput: a key or value that is not supported, or one that is missing.
    """
    kind = description.get("speculators_model_type")
    flat = kind is None and guesses_at_once(description)
    if kind != KIND and not flat:
        raise InvalidInput(f"{where} describes a {kind!r:.60} head; {KIND!r} is read here.")
    proposed = _depths(description.get("speculators_config"), where)
    # The rest of it is an EAGLE-3 head's.
    alike = dict(description) if flat else {**description, "speculators_model_type": "eagle3"}
    format_ = safeailab if flat else speculators
    return PEagleConfig(
        head=format_.described(alike, tensors, where, also=(*_MASKS, *_DEPTHS), taps=taps),
        mask_token_id=_mask(description, mask_token_id, where),
        depths=whole_number(description, _DEPTHS[0], where=where, default=proposed),
    )


def _mask(description: Mapping[str, Any], given: int | None, where: str) -> int:
    named = {key: description[key] for key in _MASKS if description.get(key) is not None}
    if odd := next((key for key, value in named.items() if type(value) is not int), None):
        raise InvalidInput(f"{odd} is {named[odd]!r:.60} in {where}; give a token of the target.")
    told = set(named.values())
    if len(told) > 1:
        raise InvalidInput(
            f"{' and '.join(named)} name different tokens in {where}; copy the head's description again."
        )
    if given is not None and told - {given}:
        raise InvalidInput(f"mask_token_id={given} is not that of {where}, {told.pop()}; leave it out.")
    mask = told.pop() if told else given
    if mask is None or mask < 0:
        shown = description.get(_MASKS[0])
        raise InvalidInput(
            f"mask_token_id is {shown!r:.60} in {where}; a P-EAGLE head needs the token there that it was "
            "trained with in place of those not drafted yet, which SpecForge takes from its training "
            "configuration: write it in, or give it as -o mask_token_id=NUMBER."
        )
    return mask


def description_of(config: PEagleConfig, *, target: str) -> dict[str, Any]:
    """The description of which `described` makes `config` again."""
    made = speculators.description_of(config.head, target=target)
    made |= {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": KIND,
        "mask_token_id": config.mask_token_id,
    }
    made["speculators_config"] |= {
        "algorithm": KIND,
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depths}],
    }
    return made


def _depths(told: Any, where: str) -> int:
    """Returns how many tokens its makers draft; 8 where they do not say."""
    methods = told.get("proposal_methods") if isinstance(told, dict) else None
    if not isinstance(methods, list) or not methods:
        return 8
    first = methods[0] if isinstance(methods[0], dict) else {}
    return whole_number(first, "speculative_tokens", where=where, default=8)


def _in_file(name: str, first: str) -> str:
    return in_file(name.removeprefix("head."), first)
