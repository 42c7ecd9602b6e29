"""MTP layers as drafters: every family's forward, trees, commits, rows, files, and the target's law."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Outcome,
    Request,
    SpeculativeDecoder,
    UnsupportedModel,
    create,
)
from draftwood.backends.loading.loader import load
from draftwood.strategies.drafters.mtp import Mtp
from draftwood.strategies.heads.unrolled import unrolled
from draftwood.strategies.mtp.checkpoint import is_layer, load_layer, save_layer
from draftwood.strategies.mtp.head import MtpHead
from draftwood.strategies.mtp.layout import layout_of
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import FeatureToyBackend, ToyBackend, ToyModel, assert_lossless, check_strategy
from tests.backends.recurrent_models import Doubled
from tests.strategies.beside_target import assert_pair_caches_alike
from tests.strategies.mtp_layers import KINDS, BesideLayer, checkpoint, describe, model_of
from tests.strategies.mtp_parts import WIDTH
from tests.strategies.mtp_plain import Plain
from tests.thorough import marks_unless, some_of

# One of attention, latent or plain, and hybrids of both kinds.
USUAL = ("deepseek", "qwen3-next", "nemotron", "mimo")
INDEXED = ("deepseek-sparse", "glm-sparse")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = checkpoint(KINDS[name], tmp_path_factory.mktemp(name.replace(".", "-")))
        return made[name]

    return folder


def beside(name: str, folder: Path, *, target: str | None = None) -> BesideLayer:
    return BesideLayer(load(model_of(KINDS[target or name]).double()), load_layer(folder))


@pytest.mark.parametrize(
    "name", some_of(KINDS, (*USUAL, "qwen3.5", "ernie", "glm-sparse", "longcat", "exaone"))
)
def test_a_tree_is_its_paths_by_transformers_own_layers(name: str, folders: Any) -> None:
    """Checks DeepSeek-V3 and GLM-4.5 against `MtpModel` of transformers, which reads the same files."""
    drafter = beside(name, folders(name))
    plain = Plain(KINDS[name], folders(name), drafter.target.model)
    texts = [[3, 1, 4, 1, 5, 9, 2], [6, 5], [7]]
    with Doubled():
        drafter.prefill([torch.tensor(text) for text in texts])
    parents, tokens = [-1, 0, 0, 1, 2, 3], [[8, 2, 3, 4, 5, 6], [9, 1, 1, 2, 2, 3], [7, 7, 8, 8, 9, 9]]
    for first, last in ((0, 1), (1, 3), (3, 6)):  # the last call holds a node and its child
        with Doubled():
            logits = drafter.distributions(
                [Request(torch.tensor(row[first:last]), torch.tensor(parents[first:last])) for row in tokens]
            )
        for row, text in enumerate(texts):
            for column, node in enumerate(range(first, last)):
                path: list[int] = []
                while node >= 0:
                    path.insert(0, tokens[row][node])
                    node = parents[node]
                with Doubled():
                    expected = plain.logits(text, path)
                torch.testing.assert_close(logits[row, column], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", some_of(KINDS, (*USUAL, "glm-sparse")))
def test_after_many_rounds_the_cache_is_that_of_a_fresh_prefill(name: str, folders: Any) -> None:
    # Nemotron-H's own steps are rounded to single precision; its layer is not.
    target = "mimo" if name == "nemotron" else name
    drafter, fresh = (beside(name, folders(name), target=target) for _ in range(2))
    texts: list[list[int]] = [[3, 1, 4], [], [7]]
    generator = torch.Generator().manual_seed(3)
    with Doubled():
        drafter.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
        for step in range(6):
            roots = torch.randint(23, (len(texts),), generator=generator).tolist()
            drafter.distributions(
                [
                    Request(torch.tensor([root, 5, 6, 7]), torch.tensor([-1, 0, 0, 1])) if step % 3 else None
                    for root in roots
                ]
            )
            outcomes = []
            for row, (text, root) in enumerate(zip(texts, roots, strict=True)):
                ways = [[], [root], [root, 6], [root, 5, 7], [root, 5, 7, 9, 1]]
                taken = ways[(row + 2 * step) % len(ways)]
                outcomes.append(Outcome(range(len(taken)), taken, extra=1, bonus=True, drafted=3))
                text += taken
            drafter.commit(outcomes)
            if step == 3:
                drafter.release([0])
                del texts[0]
                texts.append([1 + place % 22 for place in range(70)])
                drafter.prefill([torch.tensor(texts[-1])])
        fresh.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    used: list[Any] = [drafter.drafter, fresh.drafter]
    assert_pair_caches_alike(used[0]._rows, used[1]._rows, texts)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*USUAL, "glm-sparse", "longcat"])
def test_it_keeps_what_every_drafter_must(name: str, folders: Any) -> None:
    check_strategy(beside(name, folders(name)))


@pytest.mark.parametrize("name", some_of((*USUAL, *INDEXED), ("deepseek", "nemotron", "glm-sparse")))
def test_the_known_text_unrolled_is_what_drafting_gives(name: str, folders: Any) -> None:
    model = model_of(KINDS[name]).double()
    head, plain = load_layer(folders(name)).double(), Plain(KINDS[name], folders(name), model)
    head.borrow(model.get_output_embeddings())
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.no_grad(), Doubled():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1]
        embeddings = model.get_input_embeddings()(torch.tensor([text[1:]]))
        for depth, out in enumerate(unrolled(head, embeddings, states[:, :-1], depths=4)):
            logits = head.target_logits(out)[0]
            for place in range(depth, len(text) - 1):
                begun = place - depth + 1
                expected = plain.logits(text[:begun], text[begun : place + 2])
                torch.testing.assert_close(logits[place], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_what_was_written_gives_identical_logits(
    name: str, dtype: torch.dtype, folders: Any, tmp_path: Path
) -> None:
    head = load_layer(folders(name)).to(dtype)
    save_layer(head, tmp_path, target="big")
    read = load_layer(tmp_path)
    assert is_layer(tmp_path)
    assert not is_layer(folders(name))
    assert read.like.dtype == dtype
    weights, again = head.state_dict(), read.state_dict()
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert [weight.dtype for weight in weights.values()] == [weight.dtype for weight in again.values()]
    stored = load_file(folders(name) / "model-00002-of-00002.safetensors")
    # The last norm of some families is in the model's other tensors.
    assert load_file(tmp_path / "model.safetensors").keys() - {"model.norm.weight"} == stored.keys()
    generator = torch.Generator().manual_seed(1)
    pair = [torch.randn(2, 7, WIDTH, generator=generator).to(dtype) for _ in range(2)]
    table = torch.randn(WIDTH, 23, generator=generator).to(dtype)
    outs = []
    for one in (head, read):
        one.borrow(lambda states: states @ table)
        with torch.no_grad():
            outs.append([one.target_logits(out) for out in unrolled(one, *pair, depths=3)])
    assert all(torch.equal(a, b) for a, b in zip(*outs, strict=True))


@pytest.mark.parametrize("name", some_of(("qwen3-next", "nemotron"), ("nemotron",)))
def test_on_a_hybrid_the_text_is_that_of_generate(name: str, folders: Any, caplog: Any) -> None:
    """The layer is found in the target's own checkpoint; that it is chained is said once."""
    backend = load(folders(name), dtype=torch.float32)
    prompts = [[3, 1, 4, 1, 5], [2, 7]]
    plain = [
        backend.model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=22)[
            0, len(ids) :
        ].tolist()
        for ids in prompts
    ]
    drafter = create("drafters", "mtp", {"target": backend})
    with caplog.at_level(logging.WARNING):
        for policy in (Chain(1), FixedTree(3, 2, 12, law="top-k")):
            said = len(caplog.records)
            decoder = SpeculativeDecoder(backend, drafter, policy, Greedy())
            for rows in ([0], [0, 1]):
                out: Any = decoder.generate(
                    [prompts[row] for row in rows],
                    max_new_tokens=20,
                    eos_token_id=22,
                    seed=1,
                    return_dict_in_generate=True,
                )
                assert out.tokens == [plain[row] for row in rows]
            assert len(caplog.records) - said == (policy != Chain(1))
    assert "trained to draft 1 token(s)" in caplog.text
    assert "costs a pass" in caplog.text


LAW = ToyModel(3, seed=5)


class Toy(FeatureToyBackend):
    """With an output head."""

    def output_head(self, states: Any) -> Any:
        return states[..., : self.vocab_size] * 0.7


def small_layer(vocabulary: int, seed: int) -> MtpHead:
    layout = layout_of(
        {
            "model_type": "nemotron_h",
            "hidden_size": WIDTH,
            "vocab_size": vocabulary,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "intermediate_size": 12,
            "mtp_layers_block_type": ["full_attention", "mlp"],
        },
        where="a test",
    )
    head = MtpHead(layout).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(generator=generator)
    return head.eval()


PAIRS = [
    (Chain(2), RecursiveRejection()),
    (FixedTree(2, 2, 4), Traversal()),
    (DySpec(3), RecursiveRejection()),
]


@pytest.mark.parametrize(
    ("policy", "verifier", "prompt"),
    [
        pytest.param(policy, verifier, prompt, marks=marks_unless(place == 0 and len(prompt) == 2))
        for place, (policy, verifier) in enumerate(PAIRS)
        for prompt in ((0,), (0, 1))
    ],
)
def test_the_targets_law_comes_out_whatever_the_weights(policy: Any, verifier: Any, prompt: Any) -> None:
    drafter = BesideLayer(Toy(LAW, hidden_size=WIDTH, feature_layers=4), small_layer(3, seed=2))
    law = assert_lossless(policy, verifier, target=LAW, drafter=drafter, prompt=prompt)
    # The prompt's last token is the root, and before it must stand one that has features.
    assert (law.expected_tokens > 1) == (len(prompt) > 1)


class FirstWords(BesideLayer):
    """Proposes the words of its target that `LAW` has."""

    vocab_size = property(lambda self: LAW.vocab_size)  # type: ignore[assignment]

    def distributions(self, requests: Any) -> Any:
        return super().distributions(requests)[..., : LAW.vocab_size]


@pytest.mark.thorough
def test_the_targets_law_comes_out_on_the_states_of_a_hybrid(folders: Any) -> None:
    drafter = FirstWords(load(model_of(KINDS["nemotron"]).double()), load_layer(folders("nemotron")))
    # Its recurrent layers compute in single precision whatever they get, so a draft asked twice may differ.
    law = assert_lossless(
        *(Chain(2), RecursiveRejection()), target=LAW, drafter=drafter, prompt=(0, 1), tolerance=1e-6
    )
    assert law.expected_tokens > 1


def test_copies_of_the_targets_tables_are_not_kept(folders: Any, tmp_path: Path) -> None:
    kind = KINDS["deepseek"]
    head = load_layer(folders("deepseek"))
    assert head.embed_tokens is not None
    assert head.lm_head is not None
    drafter = Mtp(load(model_of(kind)), head)
    assert drafter.head.embed_tokens is None
    assert drafter.head.lm_head is None
    other = load_layer(folders("deepseek"))
    with torch.no_grad():
        other.get_parameter("embed_tokens.weight")[3] += 1
        other.get_parameter("lm_head.weight")[3] += 1
    kept = Mtp(load(model_of(kind)), other).head
    assert kept.embed_tokens is not None
    assert kept.lm_head is not None


def test_corrections_of_routers_are_not_rounded(folders: Any) -> None:
    head = load_layer(folders("nemotron"))
    bias = head.get_buffer("blocks.1.mixer.gate.e_score_correction_bias").clone()
    half = head.to(torch.bfloat16)
    assert half.like.dtype == torch.bfloat16
    assert torch.equal(half.get_buffer("blocks.1.mixer.gate.e_score_correction_bias"), bias)


def rewritten(folder: Path, out: Path, change: Any = None, **keys: Any) -> Path:
    """A copy of a checkpoint's layer, its tensors changed by `change` and its config by `keys`."""
    out.mkdir()
    tensors = load_file(folder / "model-00002-of-00002.safetensors")
    (out / "config.json").write_text((folder / "config.json").read_text())
    describe(out, **keys)
    save_file(tensors if change is None else change(tensors), out / "model.safetensors")
    return out


def without(name: str) -> Any:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def test_files_that_are_refused(folders: Any, tmp_path: Path) -> None:
    qwen, nemotron, glm = (folders(name) for name in ("qwen3.5", "nemotron", "glm"))
    wide = {"mtp.fc.weight": torch.zeros(WIDTH, WIDTH)}
    eighth = {"mtp.fc.weight": torch.zeros(WIDTH, 2 * WIDTH).to(torch.float8_e4m3fn)}
    second = {"mtp.layers.1.input_layernorm.weight": torch.zeros(WIDTH)}
    cases: list[tuple[Path, Any, dict[str, Any], str]] = [
        (qwen, without("mtp.fc.weight"), {}, r"lacks mtp\.fc\.weight, which its config asks for"),
        (
            nemotron,
            without("mtp.layers.1.mixer.experts.1.up_proj.weight"),
            {},
            r"lacks mtp\.layers\.1\.mixer\.experts\.1\.up_proj\.weight",
        ),
        (
            qwen,
            lambda tensors: tensors | second,
            {},
            r"does not mention: mtp\.layers\.1\.in.*several layers",
        ),
        (qwen, lambda tensors: tensors | wide, {}, r"mtp\.fc\.weight in .* has the shape \(16, 16\)"),
        (qwen, lambda tensors: tensors | eighth, {}, r"mtp\.fc\.weight .*float8_e4m3fn.* is quantised"),
        (qwen, None, {"mtp_sideways": 1}, "has the key 'mtp_sideways', which is not known"),
        (qwen, None, {"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2 .*models with one MTP layer"),
        (qwen, None, {"mtp_num_hidden_layers": 0}, "holds no MTP layer .mtp_num_hidden_layers is 0"),
        (qwen, lambda _: {"lm_head.weight": torch.ones(2)}, {}, r"no MTP layer .no tensor begins with mtp\."),
        (
            qwen,
            None,
            {"model_type": "llama"},
            "model_type is 'llama' .*MTP layers of DeepSeek-V3, Deep.*GLM-5",
        ),
        (glm, None, {"num_hidden_layers": 3}, r"no tensor begins with model\.layers\.3\."),
        (
            nemotron,
            None,
            {"mtp_hybrid_override_pattern": "*M"},
            "made of full_attention, linear_attention",
        ),
        (nemotron, None, {"mtp_hybrid_override_pattern": "**"}, "layers with one block of attention"),
        (
            glm,
            None,
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rotation .* is 'dynamic', which changes as a text grows",
        ),
    ]
    for number, (folder, change, keys, sentence) in enumerate(cases):
        with pytest.raises((InvalidInput, UnsupportedModel), match=sentence) as caught:
            load_layer(rewritten(folder, tmp_path / str(number), change, **keys))
        assert str(caught.value).count("\n") == 0


def test_targets_and_layers_that_do_not_fit(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"ToyBackend declares no features .*an MTP layer reads"):
        Mtp(ToyBackend(LAW))
    with pytest.raises(InvalidInput, match=r"target is 'llama-7m', a model; .*draftwood.load"):
        Mtp("llama-7m")
    with pytest.raises(IncompatibleModels, match="made for a vocabulary of 3, but the target's is 23"):
        Mtp(load(model_of(KINDS["mimo"])), small_layer(3, seed=1))
    narrow = layout_of(
        json.loads((folders("mimo") / "config.json").read_text()) | {"hidden_size": 8}, where="a test"
    )
    with pytest.raises(IncompatibleModels, match="made for features of width 8, but the target's is 16"):
        Mtp(load(model_of(KINDS["mimo"])), MtpHead(narrow))
    with pytest.raises(InvalidInput, match="not loaded from a folder .* head=FOLDER"):
        Mtp(load(model_of(KINDS["mimo"])))
    model_of(KINDS["qwen3.5"]).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match="holds no MTP layer .*`draftwood train mtp`"):
        Mtp(load(tmp_path))


def test_an_ernie_without_its_layer_is_told(tmp_path: Path) -> None:
    """Of its tensors the last norm is read too, which every Ernie has."""
    model_of(KINDS["ernie"]).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=r"holds no MTP layer \(no tensor begins with model.mtp_\)"):
        load_layer(tmp_path)


def test_a_layer_of_k_exaone_that_attends_in_a_window_is_refused(folders: Any, tmp_path: Path) -> None:
    shutil.copytree(folders("exaone"), tmp_path / "windowed")
    describe(tmp_path / "windowed", mtp_layer_types=["sliding_attention"], mtp_sliding_windows=[128])
    with pytest.raises(UnsupportedModel, match=r"mtp_layer_types is \['sliding_attention'\] in .*windowed"):
        load_layer(tmp_path / "windowed")
