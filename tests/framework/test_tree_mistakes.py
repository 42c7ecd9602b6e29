"""The mistake of a wrong sampler of trees is named: rightly, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import Deterministic, WithoutReplacement, WithReplacement
from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_samplers import residual
from tests.thorough import marks_unless

FEW = {name: sampler_models()[name] for name in ("plain", "flat")}
SHAPE = (0, 0, 1)


def coin() -> torch.Tensor:
    return torch.rand((), dtype=torch.float64)


def drawn_from(weights: torch.Tensor) -> int:
    return int(torch.multinomial(weights, 1))


def depth_of(case: SamplerCase, row: int) -> int:
    return 0 if row == 0 else 1 + depth_of(case, int(case.parents[row - 1]))


def wrong(mistake: str) -> Any:
    """A sampler of trees with one mistake, written out; without a name it is right."""

    def sampler(case: SamplerCase) -> list[int]:
        rows, out, row = case.target_probs, list[int](), 0
        tokens = case.draft_tokens.tolist()
        while True:
            above = int(case.parents[row - 1]) if row else 0
            children = case.children(row)
            if not children:
                of_depth = [r for r in range(len(rows)) if depth_of(case, r) == depth_of(case, row)]
                place = {
                    "bonus of the parent": above,
                    "rows of the parents": above,
                    "bonus of the last row": len(rows) - 1,
                    "bonus of a rejected node": of_depth[0],
                    "bonus by depth": depth_of(case, row),
                }.get(mistake, row)
                last = rows[place]
                return [*out, int(last.argmax()) if mistake == "greedy bonus" else drawn_from(last)]
            draft = case.draft_probs[children[0]]
            if mistake == "likeliest first":
                children = sorted(children, key=lambda child: -float(draft[tokens[child]]))
            if mistake == "target's likeliest first":
                children = sorted(children, key=lambda child: -float(rows[row][tokens[child]]))
            if mistake == "last first":
                children = children[::-1]
            place = above if mistake in ("grandparent", "rows of the parents") else row
            place = children[0] + 1 if mistake == "own row" else place
            target = left = rows[place]
            one, before = coin(), list[int]()
            for child in children:
                token = tokens[child]
                if mistake == "duplicates once" and token in before:
                    continue
                law = draft.clone()
                taken = case.law is WithoutReplacement and mistake != "first's distribution"
                if taken or mistake == "siblings taken away":
                    law[before] = 0
                    law = law / law.sum() if law.any() else draft
                if case.law is Deterministic and mistake != "chosen taken for drawn":
                    law = torch.zeros_like(draft).index_fill(0, torch.tensor([token]), 1)
                chance = left[token] / law[token]
                if mistake == "only the target":
                    chance = left[token]
                u = one if mistake == "one coin" else coin()
                if mistake == "no coin" or u < chance:
                    out.append(token)
                    row = child + 1
                    break
                before.append(token)
                if mistake == "only the token away":
                    left = left.clone()
                    left[token] = 0
                    left = left / left.sum() if left.any() else target
                elif mistake == "not divided":
                    left = (left - law).clamp(min=0)
                elif mistake not in ("not renewed", "never renewed"):
                    left = residual(left, law)
                final = residual(target, law) if mistake == "not renewed" else left
            else:
                final = {
                    "target at the end": rows[row],
                    "draft at the end": draft,
                    "first residual at the end": residual(target, draft),
                    "square at the end": left**2,
                    "support at the end": (left > 0).double(),
                }.get(mistake, final)
                return [*out, int(final.argmax()) if mistake == "greedy end" else drawn_from(final)]

    return sampler


NAMED: dict[tuple[str, type], str] = {
    ("not renewed", WithoutReplacement): "is tested by the target, not by the residual that it left",
    ("not renewed", WithReplacement): "is tested by the target, not by the residual that it left",
    ("never renewed", WithoutReplacement): "nothing is taken from the target",
    ("never renewed", Deterministic): "nothing is taken from the target",
    ("not divided", WithReplacement): "by a residual that is not divided by its sum",
    ("not divided", Deterministic): "by a residual that is not divided by its sum",
    ("target at the end", WithReplacement): "after all siblings are rejected it draws from the target",
    ("draft at the end", WithoutReplacement): "after all siblings are rejected it draws from the draft",
    ("only the token away", WithReplacement): "with the target without that token",
    ("first's distribution", WithoutReplacement): "by the distribution of the first",
    ("siblings taken away", WithReplacement): "though siblings were drawn with replacement",
    ("likeliest first", WithoutReplacement): "from the likeliest of the draft on",
    ("target's likeliest first", WithoutReplacement): "from the likeliest of the target on",
    ("last first", WithoutReplacement): "from the last to the first",
    ("duplicates once", WithReplacement): "equal siblings are tested once",
    ("own row", WithoutReplacement): "by the row of the first of them",
    ("grandparent", WithoutReplacement): "by the row of their grandparent",
    ("rows of the parents", WithReplacement): "every row of the target is that of the parent",
    ("bonus of the parent", Deterministic): "comes from the row of its parent",
    ("bonus of the last row", WithoutReplacement): "comes from the last row, whichever leaf",
    ("bonus of a rejected node", WithoutReplacement): "which may have been rejected",
    ("bonus by depth", WithReplacement): "the row at its depth, as in a chain",
    ("greedy bonus", WithoutReplacement): "after an accepted leaf is the target's most likely one",
    ("greedy end", WithReplacement): "the residual's most likely token",
    ("only the target", WithoutReplacement): "accepts with the target's probability, though",
    ("chosen taken for drawn", Deterministic): "though the siblings were chosen and not drawn",
    ("one coin", Deterministic): "one coin tests all siblings",
    ("no coin", WithoutReplacement): "the first sibling is always accepted",
}
SHOWN = {
    "not renewed",
    "not divided",
    "own row",
    "duplicates once",
    "bonus by depth",
    "chosen taken for drawn",
    "last first",
}


@pytest.mark.parametrize("law", [WithReplacement, WithoutReplacement, Deterministic])
def test_without_a_mistake_it_is_right(law: type) -> None:
    prove_sampler(wrong(""), parents=SHAPE, law=law, models=FEW)


@pytest.mark.parametrize(
    ("mistake", "law"),
    [
        pytest.param(*case, marks=marks_unless(case[0] in SHOWN), id="-".join([case[0], case[1].__name__]))
        for case in NAMED
    ],
)
def test_a_mistake_is_named(mistake: str, law: type) -> None:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(wrong(mistake), parents=SHAPE, law=law, models=FEW)
    assert NAMED[mistake, law] in (caught.value.likely or "")


@pytest.mark.parametrize("shape", [SHAPE, (0, 0), (0, 0, 1, 1)])
@pytest.mark.parametrize("mistake", ["first residual at the end", "square at the end", "support at the end"])
def test_a_mistake_of_no_known_rule_is_not_named_after_one_that_seldom_differs(
    mistake: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(wrong(mistake), parents=shape)
    assert caught.value.likely == ""
