"""Known mistakes of samplers of chains: each is a right sampler that is wrong in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor


@attrs.frozen(eq=False)
class Step:
    """One test of a chain: target and draft rows, the drafted token, and where it is."""

    targets: Tensor
    drafts: Tensor
    tokens: Sequence[int]
    index: int

    @property
    def target(self) -> Tensor:
        return self.targets[self.index]

    @property
    def draft(self) -> Tensor:
        return self.drafts[self.index]

    @property
    def token(self) -> int:
        return self.tokens[self.index]

    def moved(self, by: int) -> Step:
        """Returns the step with the target's row `by` rows later, within its rows."""
        return attrs.evolve(self, targets=_moved(self.targets, by))

    def draft_moved(self, by: int) -> Step:
        """Returns the step with the draft's row `by` rows later, within its rows."""
        return attrs.evolve(self, drafts=_moved(self.drafts, by))


def _moved(rows: Tensor, by: int) -> Tensor:
    return rows[torch.arange(len(rows)).add(by).clamp(0, len(rows) - 1)]


def ratio_of(step: Step) -> float:
    target, draft = float(step.target[step.token]), float(step.draft[step.token])
    return target / draft if draft else 1.0


def residual_of(target: Tensor, draft: Tensor) -> Tensor:
    """Returns the weights max(T - D, 0), and the target where rounding leaves none."""
    left = (target - draft).clamp(min=0)
    return left if left.any() else target


def residual_at(step: Step) -> Tensor:
    return residual_of(step.target, step.draft)


def _without_token(step: Step) -> Tensor:
    left = step.target.clone()
    left[step.token] = 0
    return left if left.any() else step.target


def _certain(weights: Tensor) -> Tensor:
    return torch.zeros_like(weights).index_fill(0, weights.argmax(), 1)


def sharpened(weights: Tensor, temperature: float) -> Tensor:
    sharp = weights ** (1 / temperature)
    return sharp / sharp.sum()


def _not_renormalised(step: Step) -> Tensor:
    left = (step.target - step.draft).clamp(min=0)
    # A search of the cumulative sum that ends beyond it finds the last token.
    left[-1] += 1 - left.sum()
    return left


def _by_the_rejecting_coin(step: Step) -> Tensor:
    heights = residual_at(step).cumsum(0)
    heights = heights / heights[-1]
    # The coin is uniform between the ratio, which it did not stay below, and 1.
    above = (heights - min(ratio_of(step), 1.0)).clamp(min=0)
    return _or(above.diff(prepend=above.new_zeros(1)), residual_at(step))


def _kept(weights: Tensor, kept: int) -> Tensor:
    if kept >= len(weights):
        return weights
    largest = weights.topk(kept).indices
    return torch.zeros_like(weights).index_copy_(0, largest, weights[largest])


def _filtered_residual(step: Step, kept: int) -> Tensor:
    target = _kept(step.target, kept)
    return _or((target / target.sum() - step.draft).clamp(min=0), step.target)


def _filtered_last(step: Step, kept: int) -> Tensor:
    return _kept(step.targets[-1], kept)


def _or(weights: Tensor, otherwise: Tensor) -> Tensor:
    return weights if weights.any() else otherwise


def cooled_step(step: Step, side: str, temperature: float) -> Step:
    rows = step.drafts if side == "draft" else step.targets
    cooled = torch.stack([sharpened(row, temperature) for row in rows])
    return attrs.evolve(step, drafts=cooled) if side == "draft" else attrs.evolve(step, targets=cooled)


@attrs.frozen(eq=False)
class Mistake:
    """A sampler for chains that is wrong in one place.

    Attributes:
        says: the mistake and its remedy, in a sentence.
        ratio: of a step, the chance that its token is accepted, at most 1.
        left: of a step, the weights from which a token is drawn after a rejection.
        last: the weights from which the token after the last one is drawn; None for none.
        shared: whether all steps are tested with one coin.
    """

    says: str
    ratio: Callable[[Step], float] = ratio_of
    left: Callable[[Step], Tensor] = residual_at
    last: Callable[[Step], Tensor | None] = lambda step: step.targets[-1]
    shared: bool = False


def _row_of_the_target(place: str, index: int) -> Mistake:
    return Mistake(
        f"after a rejection it draws from the target's {place} row, whatever step was rejected; draw from "
        "the residual of that step.",
        left=lambda step: step.targets[index],
    )


def _other_draft_row(by: int, parts: tuple[str, ...]) -> Mistake:
    """Returns the mistake of the draft's rows shifted by `by`, in these parts of a sampler."""
    acts = {"ratio": "it tests", "left": "after a rejection it draws"}
    act = "it tests and draws" if len(parts) > 1 else acts[parts[0]]
    changed: dict[str, Any] = {
        "ratio": lambda step: ratio_of(step.draft_moved(by)),
        "left": lambda step: residual_at(step.draft_moved(by)),
    }
    return Mistake(
        f"{act} by the draft's rows shifted by one: the row {'after' if by > 0 else 'before'} its own; take "
        "the row that the token was drawn from.",
        **{part: changed[part] for part in parts},
    )


def _filtered_later(kept: int, parts: tuple[str, ...]) -> Mistake:
    """Returns the mistake of a top-k that only these parts of a sampler know."""
    places = {"left": "after a rejection", "last": "for the token after the draft"}
    place = "for the tokens that it draws" if len(parts) > 1 else places[parts[0]]
    changed: dict[str, Any] = {
        "left": lambda step: _filtered_residual(step, kept),
        "last": lambda step: _filtered_last(step, kept),
    }
    return Mistake(
        f"only the {kept} most likely tokens are kept {place}, though the test knows all; filter the target "
        "before the test.",
        **{part: changed[part] for part in parts},
    )


def _rounded(dtype: torch.dtype, sides: tuple[str, ...]) -> Mistake:
    """Returns the mistake of probabilities that are rounded to `dtype`, on these sides."""

    def seen(step: Step) -> Step:
        return attrs.evolve(step, **{side: getattr(step, side).to(dtype).double() for side in sides})

    names: dict[tuple[str, ...], str] = {("targets",): "the target's", ("drafts",): "the draft's"}
    whose = names.get(sides, "all")
    name = str(dtype).removeprefix("torch.")
    return Mistake(
        f"{whose} probabilities are rounded to {name} before the test; make them in float32.",
        ratio=lambda step: ratio_of(seen(step)),
        left=lambda step: residual_at(seen(step)),
        last=lambda step: seen(step).targets[-1],
    )


KNOWN = (
    Mistake(
        "after a rejection it draws from the target; draw from the residual max(T - D, 0).",
        left=lambda step: step.target,
    ),
    Mistake(
        "it accepts with the target's probability T; the draft was drawn, so accept with T / D.",
        ratio=lambda step: float(step.target[step.token]),
    ),
    Mistake(
        "it takes the draft for certain (it accepts with T and draws from T without the rejected token), but "
        "the draft was drawn; accept with T / D and draw from max(T - D, 0).",
        ratio=lambda step: float(step.target[step.token]),
        left=_without_token,
    ),
    Mistake("it accepts with D / T; accept with T / D.", ratio=lambda step: 1 / max(ratio_of(step), 1e-300)),
    Mistake(
        "after a rejection it draws from the draft; draw from the residual max(T - D, 0).",
        left=lambda step: step.draft,
    ),
    Mistake("it accepts every drafted token; accept with T / D.", ratio=lambda step: 1.0),
    Mistake("it accepts no drafted token; accept with T / D.", ratio=lambda step: 0.0),
    Mistake(
        "after a rejection it draws from the target without the rejected token, the rule for drafts that are "
        "not drawn; draw from the residual max(T - D, 0).",
        left=_without_token,
    ),
    Mistake(
        "after a rejection it draws from max(D - T, 0), the residual's other side; draw from max(T - D, 0).",
        left=lambda step: _or((step.draft - step.target).clamp(min=0), step.target),
    ),
    Mistake(
        "after a rejection it draws from |T - D|; draw from max(T - D, 0).",
        left=lambda step: _or((step.target - step.draft).abs(), step.target),
    ),
    Mistake(
        "after a rejection it takes the residual's most likely token; draw from the residual.",
        left=lambda step: _certain(residual_at(step)),
    ),
    Mistake(
        "after a rejection it draws from the residual of the first step; take that of the rejected step.",
        left=lambda step: residual_at(attrs.evolve(step, index=0)),
    ),
    Mistake(
        "it tests and draws by the target's rows shifted by one: the row after the drafted token; take the "
        "row before it.",
        ratio=lambda step: ratio_of(step.moved(1)),
        left=lambda step: residual_at(step.moved(1)),
    ),
    Mistake(
        "it tests by the target's row after the drafted token; take the row before it.",
        ratio=lambda step: ratio_of(step.moved(1)),
    ),
    Mistake(
        "after a rejection it draws from the residual of the target's next row; take the row that was "
        "tested.",
        left=lambda step: residual_at(step.moved(1)),
    ),
    Mistake(
        "it tests by the parent's row of the target; take the row of the step itself.",
        ratio=lambda step: ratio_of(step.moved(-1)),
        left=lambda step: residual_at(step.moved(-1)),
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the row before the last; take the "
        "last.",
        last=lambda step: step.targets[-2],
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the first row; take the last.",
        last=lambda step: step.targets[0],
    ),
    Mistake(
        "the token after a draft that is accepted as a whole is the target's most likely one; draw it.",
        last=lambda step: _certain(step.targets[-1]),
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the draft; draw it from the target.",
        last=lambda step: step.drafts[-1],
    ),
    Mistake(
        "all steps are tested with one coin, so that acceptances depend on each other; take a "
        "coin for each step.",
        shared=True,
    ),
    Mistake(
        "it is greedy: it accepts the target's most likely token and emits that after a rejection; draw.",
        ratio=lambda step: float(step.target.argmax() == step.token),
        left=lambda step: _certain(step.target),
        last=lambda step: _certain(step.targets[-1]),
    ),
    Mistake(
        "it accepts where T >= D and rejects otherwise, without a coin; accept with probability T / D.",
        ratio=lambda step: float(ratio_of(step) >= 1),
    ),
    Mistake(
        "it accepts only the target's most likely token; accept with T / D.",
        ratio=lambda step: float(step.target.argmax() == step.token),
    ),
    Mistake(
        "it tests with the product of the ratios so far, as block verification does, but with its own coin "
        "at every step; test each step with its own T / D.",
        ratio=lambda step: math.prod(ratio_of(attrs.evolve(step, index=i)) for i in range(step.index + 1)),
    ),
    Mistake(
        "it accepts with the draft's probability D; accept with T / D.",
        ratio=lambda step: float(step.draft[step.token]),
    ),
    Mistake(
        "after a rejection it draws from the residual of the last step; take that of the rejected step.",
        left=lambda step: residual_at(attrs.evolve(step, index=len(step.tokens) - 1)),
    ),
    Mistake(
        "it draws from the softmax of the residual; the residual is a distribution already, up to its sum.",
        left=lambda step: (step.target - step.draft).clamp(min=0).softmax(0),
    ),
    Mistake(
        "the residual's probabilities are used without dividing by their sum; renormalise them.",
        left=lambda step: _not_renormalised(step),
    ),
    Mistake(
        "the coin that rejected a token also chooses the next one; draw a new number.",
        left=lambda step: _by_the_rejecting_coin(step),
    ),
    *(_row_of_the_target(place, index) for place, index in (("first", 0), ("last", -1))),
    Mistake(
        "after a rejection it draws uniformly among the tokens of the residual; draw by its weights.",
        left=lambda step: (residual_at(step) > 0).double(),
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the last step's residual; draw it "
        "from the target's last row.",
        last=lambda step: residual_at(step),
    ),
    *(_other_draft_row(by, parts) for by in (1, -1) for parts in (("ratio", "left"), ("ratio",), ("left",))),
    *(
        _rounded(dtype, sides)
        for dtype in (torch.float16, torch.bfloat16)
        for sides in (("targets",), ("drafts",), ("targets", "drafts"))
    ),
    Mistake(
        "a drafted token with the number 0 is always rejected, as if it were padding; test it as any other.",
        ratio=lambda step: ratio_of(step) if step.token else 0.0,
    ),
    Mistake(
        "after a rejection of a token that the target forbids it draws from the target; draw from "
        "the residual there too.",
        left=lambda step: residual_at(step) if float(step.target[step.token]) > 0 else step.target,
    ),
    *(
        _filtered_later(kept, parts)
        for kept in range(2, 8)
        for parts in (("left", "last"), ("left",), ("last",))
    ),
)
