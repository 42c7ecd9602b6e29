"""`load`: what becomes a backend, what is refused, and in which words."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import draftwood
from draftwood.backends.kinds.ssm import HybridBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading import loader as loading
from draftwood.backends.loading import tree_methods
from draftwood.backends.loading.loader import load
from draftwood.backends.loading.self_check import self_check
from draftwood.backends.model import probe
from draftwood.backends.model.probe import disagreement
from draftwood.base.errors import InvalidInput, OutOfMemory, UnsupportedModel
from tests.backends.attention_models import VOCAB, against, bloom, tiny
from tests.configurations.case import Case


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_loading_needs_no_accelerate_unless_the_model_is_spread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where accelerate is missing, transformers itself refuses any `device_map`.
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: False)
    monkeypatch.setattr(loading, "is_accelerate_available", lambda: False)
    assert load(folder).vocab_size == load(folder, device="cpu").vocab_size == VOCAB
    with pytest.raises(InvalidInput, match="'auto' needs the package accelerate"):
        load(folder, device="auto")


def test_a_folder_an_object_and_the_public_name(folder: Path) -> None:
    tokens, parents = torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]])
    logits = []
    for source in (folder, str(folder), tiny()):
        backend = draftwood.load(source)
        assert isinstance(backend, TransformerBackend)
        assert backend.lengths == []
        backend.prefill([torch.tensor([4, 5])])
        logits.append(backend.extend(tokens, parents).cpu())
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[0], logits[2])


def test_dtype_and_device(folder: Path) -> None:
    backend = load(folder, dtype="bfloat16", device="cpu")
    assert isinstance(backend, TransformerBackend)
    assert backend.model.dtype == torch.bfloat16
    assert backend.extend(torch.empty(0, 0).long(), torch.empty(0, 0).long()).dtype == torch.bfloat16
    for dtype in ("float7", "int64", 3):
        with pytest.raises(InvalidInput, match=f"dtype is {dtype!r}"):
            load(folder, dtype=dtype)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="device 'nowhere'"):
        load(folder, device="nowhere")
    with pytest.raises(InvalidInput, match=r"model\.to"):
        load(tiny(), dtype=torch.bfloat16)


def test_attention_as_asked() -> None:
    model = tiny()
    assert isinstance(load(model, attention="paths"), UnrolledBackend)
    assert isinstance(load(model, attention="mask"), TransformerBackend)
    with pytest.raises(InvalidInput, match="'fast'"):
        load(model, attention="fast")  # type: ignore[arg-type]


def test_the_self_check_runs_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        tree_methods, "self_check", lambda make, model: (seen.append(model), self_check(make, model))[1]
    )
    one, other = tiny(), tiny()
    for model in (one, one, other, one):
        assert isinstance(load(model), TransformerBackend)
    assert seen == [one, other]


def test_the_reason_against_a_mask_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = bloom()
    with caplog.at_level(logging.WARNING):
        assert isinstance(load(model), UnrolledBackend)
        assert isinstance(load(model), UnrolledBackend)
    assert [r.message for r in caplog.records if "takes no tree mask" in r.message] == [
        "BloomForCausalLM takes no tree mask (BloomForCausalLM takes no position_ids, so nodes cannot share "
        "a position); each path of a tree runs as its own batch row, which is slower."
    ]


def by_index(model: Any) -> None:
    """Let the model count positions by index, as a model with a position bias does."""
    forward = model.model.rotary_emb.forward

    def blind(x: Any, position_ids: torch.Tensor) -> Any:
        start = int(position_ids.min())
        return forward(x, position_ids=torch.arange(start, start + position_ids.shape[1]).unsqueeze(0))

    model.model.rotary_emb.forward = blind


def causal_only(model: Any) -> None:
    """Let the model ignore its mask."""
    forward = model.model.forward
    model.model.forward = lambda *args, **options: forward(*args, **options | {"attention_mask": None})


@pytest.mark.parametrize("spoil", [by_index, causal_only])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_self_check_sees_through_a_model(spoil: Any, dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    assert disagreement(TransformerBackend(model), model) is None
    spoil(model)
    assert "differ from sequential decoding" in str(disagreement(TransformerBackend(model), model))
    assert disagreement(UnrolledBackend(model), model) is None


def test_scans_that_round_more_than_usual_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two keys and four values a head, whose outputs nearly cancel before their norm. How much that rounds
    # differs between machines, so both the difference and the rounding are made larger here.
    model = Case.of(153, seed=1).model()
    assert type(model).__name__ == "OlmoHybridForCausalLM"
    assert disagreement(HybridBackend(model), model) is None
    rounds_more = HybridBackend(model)
    extend, moved = rounds_more.extend, probe.moved_logits

    def off(*args: Any) -> torch.Tensor:
        logits = extend(*args)
        return logits * (1 + 5e-4)

    monkeypatch.setattr(rounds_more, "extend", off)
    unmoved = torch.get_rng_state()

    def moved_in(draws: Iterable[int]) -> Any:
        return lambda model, text, *, by, draw: moved(model, text, by=100 * by * (draw in draws), draw=draw)

    # One draw may show what the others do not.
    monkeypatch.setattr(probe, "moved_logits", moved_in([probe.DRAWS - 1]))
    assert disagreement(rounds_more, model) is None
    monkeypatch.setattr(probe, "moved_logits", moved_in([]))
    assert "differ from sequential decoding" in str(disagreement(rounds_more, model))
    assert torch.equal(torch.get_rng_state(), unmoved)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_window_of_one_token_is_refused() -> None:
    load(tiny(hf.MistralConfig, sliding_window=2))
    with pytest.raises(UnsupportedModel, match="attention window of 1 token.*use a window of 2 or more"):
        load(tiny(hf.MistralConfig, sliding_window=1))


def test_a_model_that_fails_both_ways_is_refused() -> None:
    config = hf.BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.3,
    )
    encoder = hf.BertLMHeadModel(config).eval()
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="BertLMHeadModel cannot continue from its own cache"):
            load(encoder)


def test_families_that_no_backend_serves() -> None:
    rwkv = hf.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(
        UnsupportedModel, match=r"layers that are not known \(RwkvBlock\); supported are .*BambaMixer"
    ):
        load(hf.RwkvForCausalLM(rwkv).eval())


@pytest.mark.parametrize("source", [7, None, torch.nn.Linear(2, 2)])
def test_what_is_no_model(source: Any) -> None:
    with pytest.raises(InvalidInput, match="is no model"):
        load(source)


def test_training_mode_is_served_where_nothing_is_random() -> None:
    model = tiny().train()
    against(model, load(model)).prefill([[1, 2, 3]])
    model.model.layers[1].self_attn.attention_dropout = 0.25
    with pytest.raises(
        InvalidInput,
        match=r"is in training mode, where .*layers\.1.* \(attention_dropout is 0\.25\); call model\.eval",
    ):
        load(model)
    model.model.layers[1].self_attn.attention_dropout = 0.0
    model.gradient_checkpointing_enable()
    with pytest.raises(InvalidInput, match=r"keeps no cache; call model\.eval\(\) or model\.gradient_check"):
        load(model)
    load(model.eval())


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "a/b/c"])
def test_a_missing_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"There is no model folder {name}; "):
        load(name)


def test_a_hub_name_that_gives_nothing() -> None:
    with pytest.raises(InvalidInput, match="nobody/nothing is neither a folder here nor a model"):
        load("nobody/nothing")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="could not be read"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_broken_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match="could not be read"):
        load(folder)


def test_weights_cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidInput, match="could not be read"):
        load(folder)


def test_weights_that_lack_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"1 missing keys, model\.layers\.1\.mlp\.up_proj\.weight first"):
        load(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(InvalidInput):
        load(folder)


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_pickles_are_not_loaded(folder: Path, tmp_path: Path) -> None:
    torch.save({"trap": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="no safetensors weights, and pickles are never loaded"):
        load(folder)
    assert not (tmp_path / "sprung").exists()


def test_remote_code_runs_only_when_asked(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config | own))
    (folder / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class Mine(LlamaConfig):\n    model_type = 'mine'\n"
        "class M(LlamaForCausalLM):\n    config_class = Mine\n"
    )
    with pytest.raises(UnsupportedModel, match="its own Python code"):
        load(folder)
    assert not (tmp_path / "ran").exists()
    assert isinstance(load(folder, trust_remote_code=True), TransformerBackend)
    assert (tmp_path / "ran").exists()


def test_errors_have_no_line_breaks(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidInput) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_a_pass_without_memory_says_nothing_of_the_model(
    fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = tiny(), 0
    plain = model.model.forward

    def without_memory(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            torch.empty(2**50)
        return plain(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(model.model, "forward", without_memory)
        with pytest.raises(OutOfMemory, match="use fewer rows"):
            load(model)
    assert isinstance(load(model), TransformerBackend)


@pytest.mark.parametrize(
    ("owner", "name"), [(torch.nn.Module, "to"), (hf.AutoModelForCausalLM, "from_pretrained")]
)
def test_weights_without_memory(
    owner: type, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda *_, **__: torch.empty(2**50))
    with pytest.raises(OutOfMemory, match=r"does not fit into memory .*; use a half-precision dtype"):
        load(folder)


def test_a_folder_with_an_encoder_decoder(tmp_path: Path) -> None:
    config = hf.BartConfig(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    )
    hf.BartForConditionalGeneration(config).save_pretrained(tmp_path)
    assert type(load(tmp_path).model) is hf.BartForConditionalGeneration


def test_a_model_that_transformers_does_not_know_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "newest", "architectures": ["NewestForCausalLM"]}')
    with pytest.raises(UnsupportedModel, match="does not know; where it brings its own code give trust"):
        load(tmp_path)
