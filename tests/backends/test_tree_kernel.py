"""Whole models whose attention is the tree kernel, against the same models under masks of numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from draftwood.backends.attention.number_masks import NumberMasks
from draftwood.backends.attention.tree_attention import Attending
from draftwood.backends.attention.tree_kernel import TREE, BitMasks, tree_attention, under
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Region, Staged, packed
from draftwood.backends.nodes.staging import send
from draftwood.backends.structure.masks import Reach
from draftwood.kernels import support
from draftwood.kernels.tree_attention import dispatch
from tests.backends.captured_models import as_traced
from tests.thorough import marks_unless

VOCAB = 53
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "grouped heads": (hf.LlamaConfig, {}),
    "three heads a group": (hf.MistralConfig, {"num_attention_heads": 6, "sliding_window": 4}),
    "soft-cap, windows": (hf.Gemma2Config, {"sliding_window": 5, "query_pre_attn_scalar": 16}),
    "sinks, windows": (
        hf.GptOssConfig,
        {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": None},
    ),
}


def tiny(config: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    small = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    model = hf.AutoModelForCausalLM.from_config(config(**small | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def logits_of(model: Any, capture: Any = "off") -> torch.Tensor:
    """Returns the logits of two rows of different length over two rounds of trees, the first in two calls."""
    chance, logits = random.Random(0), []
    backend = TransformerBackend(model, chunk=16, capture=capture)

    def tokens(*shape: int) -> torch.Tensor:
        return torch.tensor([chance.randrange(VOCAB) for _ in range(torch.Size(shape).numel())]).view(shape)

    backend.prefill([tokens(20), tokens(3)])
    first = torch.tensor([[-1, 0, 1, 2, 0], [-1, 0, 0, -1, -1]])
    logits += [row[:n] for row, n in zip(backend.extend(tokens(2, 5), first, [5, 3]), (5, 3), strict=True)]
    logits += list(backend.extend(tokens(2, 2), torch.tensor([[3, 4], [2, 3]])))
    backend.commit([[0, 1, 2, 3, 5], [0, 2, 3]])
    logits += list(backend.extend(tokens(2, 1), torch.tensor([[-1], [-1]])))
    backend.commit([[0], []])
    logits += list(backend.extend(tokens(2, 3), torch.tensor([[-1, 0, 0], [-1, -1, 1]])))
    return torch.cat(logits)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("name", "capture"),
    [
        *[pytest.param(name, "off", marks=marks_unless(name != "grouped heads")) for name in MODELS],
        *[
            pytest.param(name, as_traced, marks=pytest.mark.thorough)
            for name in ("three heads a group", "soft-cap, windows")
        ],
    ],
)
def test_a_model_agrees_with_its_reference_path(
    name: str, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, options = MODELS[name]
    model = tiny(config, **options)
    own = model.config._attn_implementation
    with support.kernels_enabled(False):
        expected = logits_of(model)
    # No mask of numbers, and no reference.
    monkeypatch.setattr(NumberMasks, "of", None)
    monkeypatch.setattr("draftwood.kernels.tree_attention.reference.attend", None)
    monkeypatch.setattr("draftwood.kernels.kv_commit.reference.move", None)
    with support.kernels_enabled(True):
        logits = logits_of(model, capture)
    assert float((logits - expected).norm() / expected.norm()) <= 1e-5
    assert model.config._attn_implementation == own


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dtype", "dim", "reason"),
    [
        (torch.float64, 16, "its tensors are torch.float64"),
        (torch.float32, 8, "a head dim of 8 is not a multiple of 16 up to 256"),
    ],
)
def test_other_models_keep_their_masks(
    dtype: torch.dtype, dim: int, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("INFO", logger=support.__name__)
    support._logged.clear()
    monkeypatch.setattr(dispatch, "attend", None)
    with support.kernels_enabled(True):
        logits_of(tiny(hf.LlamaConfig, head_dim=dim).to(dtype))
    assert f"tree_attention: runs the reference, because {reason}." in caplog.messages


def masks_of(
    kinds: dict[str, Reach], visible: list[list[bool]], *, length: int, start: int, positions: list[int]
) -> Any:
    """Returns the stand-in for the masks of one row whose nodes are all of its columns, and the masks."""
    depths = np.array([positions]) - length
    inputs = PassInputs.of(
        torch.zeros(1, len(positions), dtype=torch.int64),
        Staged(depths - 1, [len(positions)], 0, packed(np.array([visible])), depths),
        kinds=kinds,
        before=Region.empty(1),
        lengths=np.array([length]),
        base=start,
        ragged=length < start,
        max_length=None,
    )
    form = BitMasks(tuple(kinds), attention=Attending([], TREE))
    return form.of(send(inputs.arrays(form), torch.device("cpu")), inputs.shape)


def test_a_bias_by_position_is_left_to_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, n, 16, generator=generator) for n in (2, 5, 5))
    bias = torch.randn(1, 2, 2, 5, generator=generator)
    marker, masks = masks_of(
        {"full_attention": Reach()}, [[True, False], [True, True]], length=2, start=3, positions=[3, 4]
    )
    with under(masks):
        out, _ = tree_attention(torch.nn.Module(), queries, keys, values, marker, position_bias=bias)
    seen = torch.tensor([[True, True, False, True, False], [True, True, False, True, True]])
    scores = queries @ keys.mT / 4 + bias
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
    assert torch.allclose(out, expected.transpose(1, 2), atol=1e-5)


def test_layers_on_another_device_share_one_copy_of_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    markers, masks = masks_of(
        {"full_attention": Reach(), "sliding_attention": Reach(window=2)},
        np.tri(3, dtype=bool).tolist(),
        length=0,
        start=0,
        positions=[0, 1, 2],
    )
    seen = []
    monkeypatch.setattr(dispatch, "attend", lambda **options: seen.append(options["mask"]))
    with under(masks):
        for device in ("meta", "cpu", "meta"):
            states = torch.zeros(1, 1, 3, 16, device=device)
            for marker in markers.values():
                tree_attention(torch.nn.Module(), states, states, states, marker)
    assert [mask.bits.device.type for mask in seen] == ["meta"] * 2 + ["cpu"] * 2 + ["meta"] * 2
    assert seen[:2] == seen[4:]
    assert (seen[2], seen[3]) == masks


@given(query=st.integers(0, 60), size=st.integers(1, 20), chunked=st.booleans())
def test_a_window_is_what_comes_from_its_first_position(query: int, size: int, chunked: bool) -> None:
    reach = Reach(chunk=size) if chunked else Reach(window=size)
    at, keys = np.array([[query]]), np.arange(query + 1)[None]
    assert (reach.sees(at, keys)[0] == (keys >= reach.first(at))).all()
