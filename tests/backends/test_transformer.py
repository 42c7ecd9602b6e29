"""`TransformerBackend` where law S on random calls does not look: memory, errors, limits, attention."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch.nn.functional import scaled_dot_product_attention

from draftwood.backends.attention.kv import SPARE, RowCache
from draftwood.backends.attention.tree_attention import (
    BLOCK,
    GROUPED,
    TreeAttention,
    grouped_sdpa,
    packed_sdpa,
)
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.base.errors import InvalidInput, InvalidTree, OutOfMemory, UnsupportedModel
from draftwood.testing.backends import Mirror
from tests.backends.attention_models import VOCAB, against, tiny, words

CHAIN = torch.tensor([[-1, 0, 1, 2]])


@pytest.fixture
def model() -> Any:
    return tiny()


def mirror(model: Any, backend: TransformerBackend | None = None, **options: Any) -> Mirror:
    return against(model, backend or TransformerBackend(model, **options))


def test_what_it_says_of_the_model(model: Any) -> None:
    backend = TransformerBackend(model)
    assert repr(backend) == "TransformerBackend(LlamaForCausalLM, lengths=[])"
    assert (backend.vocab_size, backend.max_length) == (VOCAB, None)
    assert (backend.eos_token_ids, backend.pad_token_id) == ((0, 5), 1)
    assert backend.weight_bytes == 4 * sum(p.numel() for p in model.parameters())
    tied = TransformerBackend(tiny(tie_word_embeddings=True))
    assert backend.weight_bytes - tied.weight_bytes == 4 * VOCAB * 32
    assert backend.device == torch.device("cpu")


def test_special_tokens_follow_the_generation_config(model: Any) -> None:
    assert model.config.pad_token_id == 1
    model.generation_config.eos_token_id = 9
    model.generation_config.pad_token_id = None
    backend = TransformerBackend(model)
    assert (backend.eos_token_ids, backend.pad_token_id) == ((9,), None)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    assert TransformerBackend(model).eos_token_ids == ()


def test_buffers_grow_under_committed_text(model: Any) -> None:
    both = mirror(model)
    both.prefill([words(150), words(5)])
    for _ in range(3):
        # 70 nodes a round outgrow the slots, and the region's own 64 columns.
        both.extend([[(1, -1), *[(i % VOCAB, 0) for i in range(39)]], [(2, -1)]])
        both.extend([[(3, 39), *[(i % VOCAB, 40) for i in range(29)]], [(2, 0)]])
        both.commit([[0, 39, 40, 69], [0, 1]])
    both.check_state()


def test_many_short_rows_do_not_multiply_a_long_one(model: Any) -> None:
    both = mirror(model)
    both.prefill([words(3)] * 8)
    backend: Any = both.backend
    both.release(range(1, 8))
    both.extend([[(i % VOCAB, -1) for i in range(200)]])
    assert {arena.shape[1] for arena in backend._cache._arenas} == {1}
    both.commit([[199]])
    both.check_state()
    both.release(None)
    assert backend._cache._arenas == []


def test_a_long_prompt_is_held_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = RowCache._build

    def counted(self: RowCache, *, rows: int, slots: int) -> None:
        built.append(slots)
        build(self, rows=rows, slots=slots)

    monkeypatch.setattr(RowCache, "_build", counted)
    both = mirror(model, chunk=16)
    both.prefill([words(300)])
    # Room for small buffers, which the first pass makes, then all of it at once; and room for what follows.
    assert built == [16 + SPARE, 300 + SPARE]
    both.check_state()
    assert len(built) == 2
    both.release(None)
    both.prefill([words(300)])
    assert built[2:] == [300 + SPARE]


def test_rows_joining_late_leave_the_others(model: Any) -> None:
    both = mirror(model)
    for length in (3, 70, 0, 9):
        both.prefill([words(length)])
        both.check_state()


def test_prefill_in_chunks(model: Any) -> None:
    both = mirror(model, chunk=4)
    both.prefill([words(11), words(4), words(5), []])
    both.check_state()
    windowed = mirror(tiny(hf.MistralConfig, sliding_window=5), chunk=4)
    windowed.prefill([words(11), words(4)])
    windowed.check_state()


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 4}, {"sliding_window": 70}])
def test_long_passes_attend_in_blocks(options: dict[str, Any]) -> None:
    backends = mirror(tiny(hf.MistralConfig, **{"sliding_window": None} | options), chunk=2 * BLOCK)
    backends.prefill([words(2 * BLOCK + 30), words(3), words(BLOCK + 1)])
    nodes = [(node % VOCAB, max(node // 2 - 1, -1)) for node in range(BLOCK + 2)]
    backends.extend([nodes, nodes[:1], nodes[:2]])
    backends.commit([[1, 4], [], [0]])
    backends.check_state()


def test_prefill_computes_one_row_of_logits(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    forward = model.lm_head.forward
    monkeypatch.setattr(model.lm_head, "forward", lambda x: (widths.append(x.shape[1]), forward(x))[1])
    TransformerBackend(model, chunk=8).prefill([torch.tensor(words(20))])
    assert widths == [1, 1, 1]


def test_a_path_in_place_is_not_copied(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TransformerBackend(model)
    backend.prefill([torch.tensor(words(4))])
    moves: list[Any] = []
    move = backend._cache.move
    monkeypatch.setattr(
        backend._cache, "move", lambda *to: (moves.append([list(part) for part in to]), move(*to))
    )
    backend.extend(torch.tensor([[1, 2, 3, 4]]), CHAIN)
    backend.commit([[0, 1, 2]])
    assert moves == []
    backend.extend(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[-1, 0, 0, 2]]))
    backend.commit([[0, 2, 3]])
    assert moves == [[[0, 0], [9, 10], [8, 9]]]


def test_nodes_that_are_not_kept_are_no_parents(model: Any) -> None:
    backend, token = TransformerBackend(model), torch.tensor([[3]])
    backend.prefill([torch.tensor([1, 2])])
    root = torch.tensor([[-1]])
    logits = backend.extend(token, root, keep=False)
    with pytest.raises(InvalidTree, match="Node 0 of row 0 has parent 0"):
        backend.extend(token, torch.tensor([[0]]))
    assert torch.equal(backend.extend(token, root), logits)


def test_overlapping_moves_read_before_they_write(model: Any) -> None:
    both = mirror(model)
    both.prefill([words(3)])
    both.extend([[(1, -1), (2, -1), (3, 1), (4, 2), (5, 3), (6, 4)]])
    both.commit([[1, 2, 3, 4, 5]])
    both.check_state()


def test_state_made_in_inference_mode_serves_outside(model: Any) -> None:
    both = mirror(model)
    with torch.inference_mode():
        both.prefill([words(5)])
        both.extend([[(1, -1), (2, 0)]])
    both.extend([[(3, 1), (4, 0)]])
    both.commit([[0, 1, 2]])
    logits = both.backend.extend(torch.tensor([[1]]), torch.tensor([[-1]]))
    logits += 1.0  # the caller's own to change
    assert not logits.requires_grad
    assert torch.is_grad_enabled()


def test_tokens_come_as_any_integers(model: Any) -> None:
    both = mirror(model)
    both.prefill([words(4)])
    backend = both.backend
    plain = backend.extend(torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]))
    backend.commit([[]])
    assert torch.equal(backend.extend(torch.tensor([[1, 2]]).int(), torch.tensor([[-1, 0]]).int()), plain)


FAILURES = [
    (RuntimeError("a bug in the model"), RuntimeError),
    (KeyboardInterrupt(), KeyboardInterrupt),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), OutOfMemory),
    (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."), OutOfMemory),
]


@pytest.mark.parametrize(("failure", "seen"), FAILURES)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_pass_that_raises_leaves_the_state(
    model: Any, monkeypatch: pytest.MonkeyPatch, failure: BaseException, seen: type[BaseException], layer: int
) -> None:
    both = mirror(model)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise failure

    def failing(call: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(model.model.layers[layer].mlp, "forward", fail)
            with pytest.raises(seen) as caught:
                call()
        assert torch.is_grad_enabled()
        if seen is OutOfMemory:
            assert "fewer rows" in str(caught.value)

    # The very first pass, with half of the layers' buffers made.
    failing(lambda: both.backend.prefill([torch.tensor(words(3))]))
    both.check_lengths()
    both.prefill([words(6), words(2)])
    failing(lambda: both.backend.prefill([torch.tensor(words(90))]))
    both.extend([[(1, -1), (2, 0)], [(3, -1)]])
    failing(lambda: both.backend.extend(torch.tensor([[4], [5]]), torch.tensor([[1], [0]])))
    failing(lambda: both.backend.extend(torch.zeros(2, 80).long(), torch.zeros(2, 80).long()))
    assert model.config._attn_implementation == "sdpa"
    both.extend([[(6, 0)], [(7, 0)]])
    both.commit([[0, 2], [0, 1]])
    both.prefill([words(4)])
    both.check_state()


def test_a_growth_that_does_not_fit_leaves_the_state(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = mirror(model)
    both.prefill([words(6)])
    zeros, calls = torch.zeros, 0

    def second_fails(*shape: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += len(shape) == 5
        if calls == 1 and len(shape) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return zeros(*shape, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", second_fails)
        with pytest.raises(OutOfMemory):
            both.backend.prefill([torch.tensor(words(200))])
    assert calls == 1
    both.check_state()


def test_the_context_is_held_to_the_token(model: Any) -> None:
    both = mirror(model)
    both.backend.max_length = 12
    with pytest.raises(InvalidInput, match="Row 1 has 13 tokens.*holds 12"):
        both.backend.prefill([torch.tensor(words(2)), torch.tensor(words(13))])
    both.prefill([words(9), words(1)])
    # More nodes than there is room for are fine as long as none stands too deep.
    both.extend([[(i, -1) for i in range(6)], [(1, -1)]])
    both.extend([[(1, 0), (2, 6)], [(2, 0)]])
    with pytest.raises(InvalidInput, match="row 0 has position 12.*holds 12"):
        both.backend.extend(torch.tensor([[1], [1]]), torch.tensor([[7], [0]]))
    both.commit([[0, 6, 7], [0]])
    assert both.backend.lengths == [12, 2]
    both.extend([[], [(1, -1)]])


def test_a_full_row_waits_beside_others() -> None:
    """Its padding must not ask for a position that a table of positions lacks."""
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=12)
    both = mirror(hf.GPT2LMHeadModel(config).eval())
    both.prefill([words(12), words(2)])
    both.extend([[], [(1, -1), (2, 0)]])
    both.commit([[], [0, 1]])
    both.extend([[], [(1, -1)]])


def test_rows_join_between_rounds_only(model: Any) -> None:
    both = mirror(model)
    both.prefill([words(3)])
    both.extend([[(1, -1)]])
    with pytest.raises(InvalidInput, match="commit or drop"):
        both.backend.prefill([torch.tensor([1])])
    both.release(None)
    both.prefill([words(2)])
    both.check_state()


def test_malformed_trees_name_what_is_wrong(model: Any) -> None:
    backend = TransformerBackend(model)
    backend.prefill([torch.tensor(words(3)), torch.tensor(words(2))])
    root = torch.tensor([[-1, 0], [-1, 0]])
    with pytest.raises(InvalidTree, match="Node 1 of row 1 holds token 53; this model's are 0 to 52"):
        backend.extend(torch.tensor([[1, 2], [3, 53]]), root)
    with pytest.raises(InvalidTree, match="Node 0 of row 1 holds token -1; this model's are 0 to 52"):
        backend.extend(torch.tensor([[1, 2], [-1, 5]]), root)
    with pytest.raises(InvalidTree, match="Node 1 of row 0 has parent 1;"):
        backend.extend(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[-1, 1], [-1, 0]]))
    backend.extend(torch.tensor([[1, 2], [3, 4]]), root)
    with pytest.raises(InvalidTree, match=r"\[1\] of row 1 has node 1 after -1, but its parent is 0"):
        backend.commit([[0], [1]])
    with pytest.raises(InvalidTree, match=r"\[0, 2\] of row 0 names node 2; the row has 2"):
        backend.commit([[0, 2], [0]])


def test_a_pass_in_training_mode_is_refused(model: Any) -> None:
    both = mirror(model)
    both.prefill([[1, 2, 3]])
    model.train()
    with pytest.raises(InvalidInput, match="training mode"):
        both.backend.extend(torch.tensor([[1]]), torch.tensor([[-1]]))
    model.eval()
    both.extend([[(4, -1)]])
    both.check_state()


def test_models_that_cannot_be_served_are_refused(model: Any) -> None:
    with pytest.raises(InvalidInput, match="chunk of 0"):
        TransformerBackend(model, chunk=0)
    bloom = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=4)).eval()
    with pytest.raises(UnsupportedModel, match="position_ids"):
        TransformerBackend(bloom)
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UnsupportedModel, match="Layer 1 of llama keeps a LinearAttentionLayer"):
        TransformerBackend(model)


def test_the_model_keeps_its_own_attention(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def deaf(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        """An attention that takes no mask, as flash attention takes none."""
        return query.transpose(1, 2), None

    hf.AttentionInterface.register("deaf", deaf)
    model.set_attn_implementation("sdpa")
    both = mirror(model)
    model.set_attn_implementation("deaf")
    with caplog.at_level("INFO"):
        both.backend = backend = TransformerBackend(model)
    assert "deaf takes no tree mask" in caplog.text
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    both.prefill([words(5)])
    both.check_state()
    assert set(seen) == {GROUPED}
    assert model.config._attn_implementation == "deaf"
    assert backend.lengths == [5]


def test_eager_attention_stays_eager() -> None:
    model = tiny(attn_implementation="eager")
    with TreeAttention(model).by_numbers:
        assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize(("kv_heads", "keys"), [(1, 9), (2, 9), (4, 9), (2, 4100)])
@pytest.mark.parametrize("masked", ["bool", "numbers", "no"])
def test_grouped_attention_equals_repeated_keys(queries: int, kv_heads: int, keys: int, masked: str) -> None:
    if masked == "no" and queries > 1:
        return  # a tree has a mask
    torch.manual_seed(0)
    query = torch.randn(2, 4, queries, 8)
    key, value = torch.randn(2, kv_heads, keys, 8), torch.randn(2, kv_heads, keys, 6)
    mask: torch.Tensor | None = torch.rand(2, 1, queries, keys) < 0.7
    assert mask is not None
    mask[..., 0] = True
    if masked == "numbers":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    elif masked == "no":
        mask = None
    keys_of, values_of = (states.repeat_interleave(4 // kv_heads, 1) for states in (key, value))
    expected = scaled_dot_product_attention(query, keys_of, values_of, attn_mask=mask, scale=0.3)
    expected = expected.transpose(1, 2)
    module = torch.nn.Module()
    module.num_key_value_groups = 4 // kv_heads  # type: ignore[assignment]
    torch.testing.assert_close(grouped_sdpa(module, query, key, value, mask, scaling=0.3)[0], expected)
    torch.testing.assert_close(packed_sdpa(query, key, value, mask, 0.3), expected)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_block_reads_no_keys_behind_it(kv_heads: int) -> None:
    torch.manual_seed(0)
    queries, text = 2 * BLOCK + 3, 10
    query, key = torch.randn(1, 4, queries, 8), torch.randn(1, kv_heads, text + queries, 8)
    mask = torch.full((1, 1, queries, text + queries), torch.finfo(torch.float32).min).triu(text + 1)
    layer: Any = SimpleNamespace(num_key_value_groups=4 // kv_heads, is_causal=True)
    expected = scaled_dot_product_attention(query, key, key, attn_mask=mask, enable_gqa=True)
    found, _ = grouped_sdpa(layer, query, key, key, mask)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
    key[:, :, text + BLOCK :] = torch.nan
    found, _ = grouped_sdpa(layer, query, key, key, mask)
    assert found.isfinite().all((0, 2, 3)).sum() == BLOCK


def test_offloaded_weights_are_not_read(model: Any, tmp_path: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    both = mirror(model)
    weight_bytes = TransformerBackend(model).weight_bytes
    places = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk"}
    rest = {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
    offloaded = accelerate.dispatch_model(
        model, places | rest, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True
    )
    assert offloaded.lm_head.weight.device.type == "meta"
    both.backend = TransformerBackend(offloaded)
    assert both.backend.weight_bytes == weight_bytes
    both.prefill([words(5), words(2)])
    both.extend([[(1, -1), (2, 0), (3, 0)], [(4, -1)]])
    both.commit([[0, 2], [0]])
    both.check_state()
