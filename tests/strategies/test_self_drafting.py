"""Drafting on the target itself: skipped layers and Medusa heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from draftwood_cli import app
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Outcome,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    UnsupportedModel,
    zoo,
)
from draftwood.backends.loading.loader import load
from draftwood.strategies.drafters.layer_skip import LayerSkip, choose_layers
from draftwood.strategies.drafters.medusa import Heads, MedusaHeads, load_heads, save_heads
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import (
    DrafterWithTarget,
    FeatureToyBackend,
    NextTokenModel,
    ToyBackend,
    ToyModel,
    assert_lossless,
    check_strategy,
)
from tests.thorough import marks_unless

TARGET = ToyModel(3, seed=5)
WIDTH = 4


class LayeredToy(ToyBackend):
    """Without its one layer that can be skipped it is another model, near its own."""

    skippable_layers = 1

    def without_layers(self, layers):
        assert tuple(layers) == (0,)
        return ToyBackend(ToyModel(self.vocab_size, seed=8, near=self.model))


def toy_target(model: NextTokenModel) -> FeatureToyBackend:
    return FeatureToyBackend(model, hidden_size=WIDTH)


def states_after(target: FeatureToyBackend, text: list[int]) -> Any:
    """`[1, width]` of the last token of `text`; nothing without one."""
    return target.states_after(text, 1).unsqueeze(0)[: len(text)]


def random_heads(count: int = 2, width: int = WIDTH, vocab: int = 3, seed: int = 0) -> Heads:
    heads = Heads(count, width, vocab)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(generator=generator)
    return heads


def medusa(model: NextTokenModel, heads: Heads) -> DrafterWithTarget:
    target = toy_target(model)
    return DrafterWithTarget(target, MedusaHeads(target, heads))


PAIRS = [
    (Chain(2), RecursiveRejection()),
    (FixedTree(2, 2, 4), Traversal()),
    (StaticTree(((0,), (1,), (0, 0)), law="top-k"), RecursiveRejection()),
    (DySpec(3), RecursiveRejection()),
    (FixedTree(3, 1, law="with-replacement"), RecursiveRejection()),
]


@pytest.mark.parametrize(
    ("policy", "verifier", "prompt"),
    [
        # At the first token heads propose nothing.
        pytest.param(policy, verifier, prompt, marks=marks_unless(place in shown))
        for prompt, shown in (((0,), (0,)), ((0, 1), (1, 2, 3)))
        for place, (policy, verifier) in enumerate(PAIRS)
    ],
)
@pytest.mark.parametrize(
    "drafter",
    [lambda: medusa(TARGET, random_heads()), lambda: LayerSkip(LayeredToy(TARGET), (0,))],
    ids=["Medusa heads", "layer skip"],
)
def test_the_targets_law_comes_out(drafter, policy, verifier, prompt):
    law = assert_lossless(policy, verifier, target=TARGET, drafter=drafter(), prompt=prompt)
    # Heads have nothing to read before the first token.
    assert (law.expected_tokens > 1) == (prompt != (0,) or isinstance(drafter(), LayerSkip))


def test_they_keep_what_every_drafter_must():
    check_strategy(LayerSkip(LayeredToy(ToyModel(13)), "0"))
    check_strategy(medusa(ToyModel(13), random_heads(vocab=13)))


@st.composite
def trees(draw):
    """Tokens and parents of a round, in one to three requests."""
    parents = [-1]
    cuts = [1]
    for _ in range(draw(st.integers(0, 2))):
        parents += [draw(st.integers(0, cuts[-1] - 1)) for _ in range(draw(st.integers(1, 3)))]
        cuts.append(len(parents))
    return [draw(st.integers(0, 2)) for _ in parents], parents, cuts


@settings(max_examples=50)
@given(st.lists(trees(), min_size=1, max_size=3), st.integers(1, 3), st.data())
def test_a_node_gets_the_head_of_its_depth(rows, count, data):
    heads = random_heads(count).double()
    target = toy_target(TARGET)
    drafter = MedusaHeads(target, heads)
    texts = [data.draw(st.lists(st.integers(0, 2), max_size=3)) for _ in rows]
    for joined in texts:
        prompt = [torch.tensor(joined, dtype=torch.int64)]
        target.prefill(prompt)
        drafter.prefill(prompt)
    for call in range(3):
        requests = []
        for tokens, parents, cuts in rows:
            a, b = ([0, *cuts][call], cuts[call]) if call < len(cuts) else (0, 0)
            asked = Request(torch.tensor(tokens[a:b]), torch.tensor(parents[a:b]))
            requests.append(asked if b else None)
        if not any(requests):
            break
        logits = drafter.distributions(requests)
        for row, (text, request) in enumerate(zip(texts, requests, strict=True)):
            if request is None:
                continue
            hidden: Any = states_after(target, text)[0] if text else None
            for index, parent in enumerate(request.parents.tolist()):
                depth = 0
                while parent >= 0:
                    parent, depth = rows[row][1][parent], depth + 1
                if depth >= count or not text:
                    assert (logits[row, index] == -torch.inf).all()
                    continue
                inner = heads.weight[depth] @ hidden + heads.bias[depth, 0]
                expected = heads.output[depth] @ (hidden + inner * torch.sigmoid(inner))
                assert torch.allclose(logits[row, index], expected, atol=1e-9)
    gone = data.draw(st.integers(0, len(rows) - 1))
    left = [text for row, text in enumerate(texts) if row != gone and text]
    for held in (target, drafter):
        held.release([gone])
    if left:
        root = Request(torch.tensor([1]), torch.tensor([-1]))
        first = drafter.distributions([root] * len(target.lengths))[:, 0]
        known = [row for row, length in enumerate(target.lengths) if length]
        states = torch.cat([states_after(target, text) for text in target.committed])
        assert torch.allclose(first[known], heads(states)[0], atol=1e-9)
        several = len(target.lengths)
        target.extend(torch.ones(several, 1, dtype=torch.int64), torch.full((several, 1), -1))
        target.commit([[0]] * several)
        drafter.commit([Outcome([0], [1], extra=1, bonus=True, drafted=0)] * several)
        logits = drafter.distributions([root] * several)
        assert logits.isfinite().all()
        taken: Any = drafter.target
        taken.take_features = lambda: [torch.zeros(0, WIDTH)] * several
        with pytest.raises(InvalidInput, match=r"Row 0 has committed tokens, but .* no other drafter takes"):
            drafter.commit([Outcome([0], [1], extra=1, bonus=True, drafted=0)] * several)


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.load("llama-7m")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    texts = ["Question: Tom has 3 apples and buys 4.", "def add(a, b):\n"]
    return [zoo.tokenizer()(text)["input_ids"] for text in texts]


@pytest.fixture(scope="module")
def wanted(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    return [
        model.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)[0, len(ids) :].tolist()
        for ids in prompts
    ]


@pytest.fixture(scope="module")
def heads(model: Any, prompts: list[list[int]], wanted: list[list[int]]) -> Heads:
    """Heads that know these two texts: ridge regression from the hidden states of their tokens."""
    result = Heads(3, 256, 4096)
    states, texts = [], [torch.tensor(ids + new) for ids, new in zip(prompts, wanted, strict=True)]
    with torch.no_grad():
        states = [model.model(text[None]).last_hidden_state[0] for text in texts]
        for k in range(3):
            x = torch.cat([state[: -k - 2] for state in states])
            y = torch.nn.functional.one_hot(torch.cat([text[k + 2 :] for text in texts]), 4096).float()
            result.output[k] = 20 * torch.linalg.solve(x.T @ x + 1e-2 * torch.eye(256), x.T @ y).T
    return result


SELF: dict[str, Any] = {
    "layer skip": lambda target, heads: LayerSkip(target, "2,3"),
    "Medusa heads": MedusaHeads,
}
TREES = [
    ("mask", FixedTree(3, 2, 12, law="top-k"), Greedy()),
    pytest.param(
        *("mask", StaticTree(((0,), (1,), (0, 0), (0, 0, 0)), law="top-k"), Greedy()),
        marks=pytest.mark.thorough,
    ),
    ("mask", DySpec(8), RecursiveRejection()),
    ("paths", FixedTree(3, 2, 12, law="top-k"), Greedy()),
]


@pytest.mark.parametrize(("attention", "policy", "verifier"), TREES)
@pytest.mark.parametrize("name", SELF)
def test_greedy_text_is_that_of_generate(name, policy, verifier, attention, model, heads, prompts, wanted):
    target = load(model, attention=attention)
    decoder = SpeculativeDecoder(target, SELF[name](target, heads), policy, verifier)
    for batch in ([0], [0, 1]):
        out: Any = decoder.generate(
            [prompts[row] for row in batch], max_new_tokens=30, seed=1, return_dict_in_generate=True
        )
        assert out.tokens == [wanted[row] for row in batch]
        assert out.statistics.tokens_per_round > 1.5


def test_a_sampled_row_does_not_depend_on_the_rows_beside_it(model, heads, prompts):
    target = load(model.double())
    try:
        for name in SELF:
            decoder = SpeculativeDecoder(
                target, SELF[name](target, heads), FixedTree(2, 2), RecursiveRejection()
            )
            options: dict[str, Any] = {"max_new_tokens": 16, "return_dict_in_generate": True}
            options["sampling"] = SamplingParams(temperature=0.8)
            write: Any = decoder.generate
            together = write(prompts, seed=[4, 5], **options).tokens
            assert together == [
                write([prompt], seed=[4 + row], **options).tokens[0] for row, prompt in enumerate(prompts)
            ]
    finally:
        model.float()


def test_a_target_that_declares_nothing_is_refused():
    bare = ToyBackend(TARGET)
    with pytest.raises(UnsupportedModel, match=r"ToyBackend declares no layers .*skippable_layers is 0"):
        LayerSkip(bare, (0,))
    with pytest.raises(UnsupportedModel, match="ToyBackend declares no layers"):
        choose_layers(bare, [1, 2], count=1)
    with pytest.raises(UnsupportedModel, match=r"ToyBackend declares no features .*feature_layers is 0"):
        MedusaHeads(bare, random_heads())
    for drafter in (lambda: LayerSkip("llama-7m", "1"), lambda: MedusaHeads("llama-7m", random_heads())):
        with pytest.raises(InvalidInput, match=r"target is 'llama-7m', a model; .*draftwood.load"):
            drafter()


def test_heads_of_another_model_are_refused():
    target = toy_target(TARGET)
    with pytest.raises(IncompatibleModels, match="hidden states of width 5, but the target's is 4"):
        MedusaHeads(target, random_heads(width=5))
    with pytest.raises(IncompatibleModels, match="a vocabulary of 7, but the target's is 3"):
        MedusaHeads(target, random_heads(vocab=7))


def test_heads_on_another_backend_than_the_decoders():
    decoder = SpeculativeDecoder(
        ToyBackend(TARGET), MedusaHeads(toy_target(TARGET), random_heads()), Chain(2), RecursiveRejection()
    )
    with pytest.raises(InvalidInput, match=r"target holds 0 row\(s\), not the 1 .*same backend object"):
        decoder.generate([[0, 1]], max_new_tokens=3)


def test_heads_come_back_from_their_folder(tmp_path):
    heads = random_heads().bfloat16()
    save_heads(heads, tmp_path / "new", target="toy")
    again = load_heads(tmp_path / "new")
    assert again.weight.dtype == torch.bfloat16
    for name, weight in heads.named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
    drafter = MedusaHeads(toy_target(TARGET), str(tmp_path / "new"))
    assert drafter.weight_bytes == 2 * 2 * (16 + 4 + 12)
    assert (drafter.vocab_size, drafter.heads.count) == (3, 2)
    assert json.loads((tmp_path / "new" / "heads.json").read_text())["target"] == "toy"


def corrupt(name: str, content: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "heads.json").unlink(), "no heads.json in"),
        (lambda folder: (folder / "heads.safetensors").unlink(), "no heads.safetensors in"),
        (corrupt("heads.json", b"{"), "cannot be read"),
        (corrupt("heads.json", b"\xff"), "cannot be read"),
        (corrupt("heads.json", b"[]"), "cannot be read"),
        (corrupt("heads.json", b'{"heads": 2}'), "cannot be read.*hidden_size"),
        (corrupt("heads.json", b'{"heads": 0, "hidden_size": 4, "vocab_size": 3}'), r"the sizes \[0, 4, 3\]"),
        (corrupt("heads.json", b'{"heads": 2, "hidden_size": 5, "vocab_size": 3}'), "have the shapes"),
        (corrupt("heads.safetensors", b"nothing of the kind"), "cannot be read"),
        (corrupt("heads.safetensors", b""), "cannot be read"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(damage: Any, message: str, tmp_path: Path) -> None:
    save_heads(random_heads(), tmp_path, target="toy")
    damage(tmp_path)
    with pytest.raises(InvalidInput, match=message) as caught:
        MedusaHeads(toy_target(TARGET), tmp_path)
    assert "\n" not in str(caught.value)


def test_from_the_command_line(heads: Heads, model: Any, tmp_path: Path) -> None:
    save_heads(heads, tmp_path, target="llama-7m")
    prompt = "def add(a, b):\n"
    ids = torch.tensor([zoo.tokenizer()(prompt)["input_ids"]])
    new = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    for drafter, option in (("layer-skip", "skip=2,3,5"), ("medusa", f"heads={tmp_path}")):
        command = ["generate", "--drafter", drafter, "-o", option, "--prompt", prompt, "--json"]
        result = CliRunner().invoke(app, [*command, "--max-new-tokens", "20"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["tokens"] == new
