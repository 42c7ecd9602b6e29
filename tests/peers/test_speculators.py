"""Heads of speculators' own classes are read with their logits, and ours are read by theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from draftwood_cli import app
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.peagle import load_peagle, save_peagle
from draftwood.strategies.heads.unrolled import unrolled
from draftwood.strategies.mtp.checkpoint import load_layer, save_layer
from draftwood.zoo.heads.variants import with_config

pytest.importorskip("speculators", reason="speculators is not installed; make test-peers installs it")
pytestmark = pytest.mark.peers

WIDTH, VOCAB, PROPOSED, TEXT, DEPTHS = 32, 80, 48, 12, 3
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def common(algorithm: str, tokens: int) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=tokens)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def layers_of(kind: str, **more: Any) -> Any:
    made = {"llama": hf.LlamaConfig, "qwen3": hf.Qwen3Config}[kind](**{**SIZES, **more})
    made._attn_implementation = "eager"
    return made


def drawn(model: Any) -> Any:
    """With random weights, and a map where it has one."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_().mul_(0.2 if weight.dim() > 1 else 0.1).add_(weight.dim() == 1)
    if model.d2t is not None:
        ids = torch.randperm(VOCAB)[:PROPOSED].sort().values
        has = torch.zeros(VOCAB, dtype=torch.bool)
        has[ids] = True
        model.load_vocab_mappings(has, ids - torch.arange(PROPOSED))
    return model.eval()


def seen_by(model: Any, call: Any) -> Iterator[torch.Tensor]:
    """What the model's output head gives while `call` runs."""
    found: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _, __, out: found.append(out))
    try:
        with torch.no_grad():
            call()
    finally:
        hook.remove()
    return iter(found)


PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama 3.1 norms": ("llama", {}, {"norm_before_fc": True, "norm_output": True}),
    "norms of taps": ("qwen3", {}, {"fc_norm": True, "norm_before_residual": True}),
    "biases": ("llama", {"attention_bias": True}, {}),
    "two taps": ("llama", {}, {"eagle_aux_hidden_state_layer_ids": [1, 3]}),
    "all tokens": ("qwen3", {}, {"draft_vocab_size": VOCAB}),
    "yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 5e4,
            }
        },
        {},
    ),
    "two layers": ("llama", {"num_hidden_layers": 2}, {"norm_before_residual": True, "norm_output": True}),
    "three layers with norms": ("qwen3", {"num_hidden_layers": 3}, {}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {},
    ),
}


def eagle3(kind: str, layers: dict[str, Any], more: dict[str, Any]) -> Any:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    made = Eagle3SpeculatorConfig(
        transformer_layer_config=layers_of(kind, **{"num_hidden_layers": 1, **layers}),
        speculators_config=common("eagle3", 3),
        **{"draft_vocab_size": PROPOSED, **more},
    )
    return drawn(Eagle3DraftModel(made))


def pair_logits(model: Any, features: torch.Tensor, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    documents = torch.zeros_like(tokens)
    return seen_by(
        model,
        lambda: model(hidden_states=features, input_ids=tokens, document_ids=documents, ttt_steps=DEPTHS),
    )


def text_for(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, TEXT, model.fc.weight.shape[1]), torch.randint(1, VOCAB, (1, TEXT))


def same_pairs(head: Any, model: Any) -> None:
    features, tokens = text_for(model)
    with torch.no_grad():
        ours = list(unrolled(head, head.embed_tokens(tokens), head.project(features), depths=DEPTHS))
        for depth, (out, theirs) in enumerate(zip(ours, pair_logits(model, features, tokens), strict=True)):
            # Their step d stands at the place where the draft began, ours at the token that it guesses from.
            torch.testing.assert_close(
                head.logits(out)[:, depth:], theirs[:, : TEXT - depth], rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("case", PAIRS)
def test_an_eagle_3_head_of_theirs_is_read(case: str, tmp_path: Path) -> None:
    model = eagle3(*PAIRS[case])
    model.save_pretrained(tmp_path)
    same_pairs(load_head(tmp_path), model)


@pytest.fixture
def verifier(tmp_path: Path) -> str:
    """The folder of a target, which their classes open when they read a head."""
    made = hf.LlamaConfig(**SIZES, num_hidden_layers=8)
    hf.LlamaForCausalLM(made).save_pretrained(tmp_path / "target")
    return str(tmp_path / "target")


def read_by_them(kind: str, folder: Path) -> Any:
    from speculators.models.dflash import DFlashDraftModel
    from speculators.models.dspark import DSparkDraftModel
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.models.peagle import PEagleDraftModel

    classes = {
        "eagle3": Eagle3DraftModel,
        "peagle": PEagleDraftModel,
        "dflash": DFlashDraftModel,
        "dspark": DSparkDraftModel,
    }
    config = classes[kind].config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return classes[kind].from_pretrained(folder, config=config).eval()


@pytest.mark.parametrize("case", PAIRS)
def test_ours_is_read_by_them(case: str, verifier: str, tmp_path: Path) -> None:
    eagle3(*PAIRS[case]).save_pretrained(tmp_path / "theirs")
    head = load_head(tmp_path / "theirs")
    save_head(head, tmp_path / "ours", target=verifier, format="speculators")
    same_pairs(head, read_by_them("eagle3", tmp_path / "ours"))


LAYERS = {"one layer": 1, "three layers": 3}
GUESSES = 4


def peagle(layers: int) -> Any:
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig

    made = PEagleSpeculatorConfig(
        transformer_layer_config=layers_of("llama", num_hidden_layers=layers),
        speculators_config=common("peagle", GUESSES),
        draft_vocab_size=PROPOSED,
        mask_token_id=3,
    )
    return drawn(PEagleDraftModel(made))


def same_guesses(head: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guesses of one pass after a text whose last pair is at place `anchor`."""
    from speculators.models.peagle import core

    features, tokens = text_for(model)
    anchor = TEXT - GUESSES
    drafted = torch.arange(1, GUESSES)
    places = torch.cat([torch.arange(TEXT), torch.full_like(drafted, anchor)])
    depths = torch.cat([torch.zeros(TEXT, dtype=torch.long), drafted])
    monkeypatch.setattr(core, "compute_metrics", lambda **_: (torch.zeros(()), {}))  # runs on a GPU alone
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **_: (places, depths))
    (theirs,) = seen_by(
        model,
        lambda: model(
            hidden_states=features,
            input_ids=tokens,
            document_ids=torch.zeros_like(tokens),
            loss_mask=torch.ones(1, TEXT),
            verifier_last_hidden_states=torch.zeros(1, TEXT, WIDTH),
            num_depths=GUESSES,
        ),
    )
    expected = torch.cat([theirs[0, anchor : anchor + 1], theirs[0, TEXT:]])
    parts = head.head
    with torch.no_grad():
        known: list[Any] = [[]]
        states = parts.project(features[:, : anchor + 1])
        embeddings = parts.embed_tokens(tokens[:, : anchor + 1])
        _, known = head.read(embeddings[:, :anchor], states[:, :anchor], known, [anchor])
        masks = parts.embed_tokens(torch.full((1, GUESSES - 1), head.config.mask_token_id))
        out, _ = head.read(
            torch.cat([embeddings[:, anchor:], masks], 1),
            torch.cat([states[:, anchor:], head.masked().expand(1, GUESSES - 1, -1)], 1),
            known,
            [GUESSES],
        )
        torch.testing.assert_close(parts.logits(out)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", LAYERS)
def test_p_eagle_heads_go_both_ways(
    case: str, verifier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = peagle(LAYERS[case])
    model.save_pretrained(tmp_path / "theirs")
    head = load_peagle(tmp_path / "theirs")
    same_guesses(head, model, monkeypatch)
    save_peagle(head, tmp_path / "ours", target=verifier)
    same_guesses(head, read_by_them("peagle", tmp_path / "ours"), monkeypatch)


MIXED = {
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 5,
    "use_sliding_window": True,
}
BLOCKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dflash": ("dflash", {}, {}),
    "dflash of a window": ("dflash", MIXED, {}),
    "dflash of a free window": ("dflash", MIXED, {"sliding_window_non_causal": True}),
    "dflash from the root": ("dflash", {}, {"sample_from_anchor": True}),
    "dspark": ("dspark", {}, {"markov_rank": 6}),
}


def block(kind: str, layers: dict[str, Any], more: dict[str, Any]) -> Any:
    from speculators.models import dflash, dspark

    classes = {
        "dflash": (dflash.DFlashDraftModel, dflash.DFlashSpeculatorConfig),
        "dspark": (dspark.DSparkDraftModel, dspark.DSparkSpeculatorConfig),
    }
    model, config = classes[kind]
    made = config(
        transformer_layer_config=layers_of("qwen3", num_hidden_layers=2, **layers),
        speculators_config=common(kind, 3),
        draft_vocab_size=PROPOSED,
        block_size=4,
        aux_hidden_state_layer_ids=[1, 3],
        mask_token_id=3,
        **more,
    )
    return drawn(model(made))


def same_blocks(head: Any, model: Any) -> None:
    """Logits of a block's slots, before any correction by drafted tokens."""
    features, tokens = text_for(model)
    anchor = 6
    chosen = torch.zeros(1, TEXT)
    chosen[0, anchor] = 1
    (theirs,) = seen_by(
        model,
        lambda: model._backbone_forward(
            features,
            tokens,
            chosen,
            torch.zeros(1, TEXT, WIDTH),
            torch.zeros(1, TEXT, dtype=torch.long),
            max_anchors=1,
        ),
    )
    with torch.no_grad():
        # The anchor's own features are not known when it is the root.
        context = head.context(head.project(features[0, :anchor]))
        slots = torch.full((1, head.config.block_size), head.config.mask_token_id)
        slots[0, 0] = tokens[0, anchor]
        known = [(keys.unsqueeze(0), values.unsqueeze(0)) for keys, values in context]
        # What is the target's own they take from there.
        table, output = head.embed_tokens or model.embed_tokens, head.lm_head or model.lm_head
        ours = output(head(table(slots), known, torch.tensor([anchor])))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", BLOCKS)
def test_block_drafters_go_both_ways(case: str, verifier: str, tmp_path: Path) -> None:
    model = block(*BLOCKS[case])
    model.save_pretrained(tmp_path / "theirs")
    head = load_block(tmp_path / "theirs")
    assert head.config.root_guesses == model.config.sample_from_anchor
    same_blocks(head, model)
    save_block(head, tmp_path / "ours", target=verifier, format="speculators")
    theirs = read_by_them(BLOCKS[case][0], tmp_path / "ours")
    same_blocks(head, theirs)
    if head.markov_head is not None:
        tokens = torch.randint(1, VOCAB, (1, 4))
        with torch.no_grad():
            change, _ = head.markov_head(tokens, torch.zeros(1, 4, WIDTH), None)
            vectors = theirs.markov_head.prev_embeddings(tokens)
            expected = vectors @ theirs.markov_head.markov_w2.weight.T
        torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-4)


MTP: dict[str, tuple[type, dict[str, Any]]] = {
    "qwen3": (hf.Qwen3Config, {}),
    "qwen3.5": (
        hf.Qwen3_5TextConfig,
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
        },
    ),
    "qwen3-next": (
        hf.Qwen3NextConfig,
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12,
        },
    ),
}


def mtp_like(kind: type, more: dict[str, Any]) -> Any:
    from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig

    layers = kind(**{**SIZES, **more, "num_hidden_layers": 2})
    layers._attn_implementation, layers._experts_implementation = "eager", "eager"
    model = MTPDraftModel(
        MTPSpeculatorConfig(transformer_layer_config=layers, speculators_config=common("mtp", DEPTHS))
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_().mul_(0.2)
    return model.eval()


def same_steps(head: Any, model: Any) -> None:
    """Step by step, each on the layer's own states and the text's tokens, as its maker trains it."""
    states, tokens = torch.randn(1, TEXT, WIDTH), torch.randint(1, VOCAB, (1, TEXT))
    with torch.no_grad():
        theirs, _, _ = model(input_ids=tokens, hidden_states=states)
        count = theirs[0].shape[1]
        known = states[:, :count]
        for step, expected in enumerate(theirs):
            words = model.embed_tokens(tokens[:, step + 1 : step + 1 + count])
            (out,) = unrolled(head, words, head.project(known), depths=1)
            torch.testing.assert_close(head.logits(out), expected, rtol=1e-4, atol=1e-4)
            known = head.recycled(out)


@pytest.mark.parametrize("case", MTP)
def test_mtp_layers_go_both_ways(case: str, tmp_path: Path) -> None:
    """Ours have the names of their family's checkpoints, from which speculators takes layers."""
    from speculators.convert.mtp.converter import MTPConverter

    model = mtp_like(*MTP[case])
    model.save_pretrained(tmp_path / "theirs")
    head = load_layer(tmp_path / "theirs").to(torch.float32)
    head.borrow(model.lm_head)
    assert head.layout.trained_depths == DEPTHS
    same_steps(head, model)
    save_layer(head, tmp_path / "ours", target="big")
    taken = MTPConverter().convert_to_state_dict(tmp_path / "ours")
    other = mtp_like(*MTP[case])
    missing, unknown = other.load_state_dict(taken, strict=False)
    assert not unknown
    assert all(name.startswith(("embed_tokens.", "lm_head.", "verifier_")) for name in missing)
    for name in ("embed_tokens", "lm_head"):
        getattr(other, name).load_state_dict(getattr(model, name).state_dict())
    same_steps(head, other)


def zoo_pairs(folder: Path) -> str:
    head = load_head(zoo.path("llama-7m-eagle3"))
    save_head(head, folder, target=str(zoo.path("llama-7m")), format="speculators")
    return "eagle3"


def zoo_block(folder: Path) -> str:
    """Its layer is causal, which theirs are only in a window: so it gets one that is wider than any text."""
    head = load_block(zoo.path("llama-7m-dspark"))
    wide = with_config(head, {"windows": (4096,), "window_before_root": True})
    save_block(wide, folder, target=str(zoo.path("llama-7m")), format="speculators")
    return "dspark"


@pytest.mark.parametrize("saved", [zoo_pairs, zoo_block])
def test_a_trained_head_that_they_saved_is_not_called_broken(saved: Any, tmp_path: Path) -> None:
    model = read_by_them(saved(tmp_path / "ours"), tmp_path / "ours")
    # A table that the file leaves out may be any memory here, and is taken from the verifier where it is NaN.
    torch.nn.init.constant_(model.embed_tokens.weight, torch.nan)
    model.load_verifier_weights()
    model.save_pretrained(tmp_path / "theirs")
    found = CliRunner().invoke(app, ["check-head", "llama-7m", str(tmp_path / "theirs"), "--prompts", "8"])
    assert found.exit_code == 0, found.output
