"""The residual after rejected siblings, compared with Python's own arithmetic."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.strategies.verifiers.residual import SiblingLaw

KINDS = [torch.float32, torch.float64, torch.bfloat16]


@st.composite
def weights(draw: st.DrawFn, size: int, kind: torch.dtype) -> torch.Tensor:
    seed = draw(st.integers(0, 2**31))
    made = torch.rand(2 * size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made = (made * (made > draw(st.sampled_from([0.0, 0.5, 0.99])))).to(kind)
    return made[::2] if draw(st.booleans()) else made[:size].contiguous()


@given(st.data())
def test_what_siblings_leave(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 7, 256, 1000]))
    kinds = data.draw(st.sampled_from([(kind, kind) for kind in KINDS] + [(KINDS[1], KINDS[0])]))
    left, taken = (data.draw(weights(size, kind)) for kind in kinds)
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.5]))
    kept = data.draw(st.lists(st.integers(0, size - 1), max_size=3, unique=True))
    before = left.clone()
    found = SiblingLaw(taken, 1.0, tuple(kept)).rejected(left, share)
    expected = [
        float(one) if token in kept else max(float(one) - share * float(other), 0.0)
        for token, (one, other) in enumerate(zip(before, taken, strict=True))
    ]
    assert torch.equal(left, before)
    assert found.dtype == left.dtype
    rounding = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 3e-2}[left.dtype]
    assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), atol=rounding)
    assert found[kept].tolist() == before[kept].tolist()
