"""A target that drafts for itself from the beginning and the end of the text."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
import torch
import transformers as hf
from draftwood_cli import app
from typer.testing import CliRunner

from draftwood import (
    InvalidInput,
    ModelPrompt,
    Outcome,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    UnsupportedModel,
    load,
    zoo,
)
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.drafters import LayerSkip, Named, PromptLookup, Several, Windowed
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import (
    DrafterWithTarget,
    ToyBackend,
    ToyModel,
    assert_lossless,
    check_strategy,
)
from tests.backends import recurrent_models
from tests.backends.attention_models import VOCAB, bloom, tiny, words
from tests.cache_names import cache_name

LLAMA = tiny().double()
MODELS: dict[str, Any] = {
    "grouped heads": LLAMA,
    "windows and all": tiny(
        hf.Gemma2Config, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ).double(),
    "positions in a table": tiny(hf.GPT2Config).double(),
}


@torch.no_grad()
def path_logits(model: Any, text: list[int], path: list[int], *, sinks: int, window: int) -> torch.Tensor:
    """Logits `[vocab]` after `path`: the model's forward over it, with all keys of `text` and a mask."""
    cache = hf.DynamicCache()
    length, nodes = len(text), len(path)
    if text:
        model(torch.tensor([text]), **{cache_name(model): cache})
    keys, queries = torch.arange(length + nodes), torch.arange(length, length + nodes)[:, None]
    seen = (keys <= queries) & ((keys < sinks) | (keys >= length - window))
    near = seen & (queries - keys < (getattr(model.config, "sliding_window", None) or length + nodes))
    low = torch.finfo(model.dtype).min
    full, sliding = (
        torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, low)[None, None]
        for mask in (seen, near)
    )
    masks: Any = full
    if getattr(model.config, "layer_types", None) and "sliding_attention" in model.config.layer_types:
        masks = {"full_attention": full, "sliding_attention": sliding}
    out = model(
        torch.tensor([path]), attention_mask=masks, position_ids=queries.mT, **{cache_name(model): cache}
    )
    logits: torch.Tensor = out.logits[0, -1]
    return logits


class Rounds:
    """Rows of a target and its drafter, and what was asked; every answer is compared with `path_logits`."""

    def __init__(self, model: Any, *, sinks: int, window: int) -> None:
        backend = TransformerBackend(model)
        self.drafter = DrafterWithTarget(backend, Windowed(backend, sinks=sinks, window=window))
        self.oracle = copy.deepcopy(model)
        self.sizes: Any = {"sinks": sinks, "window": window}
        self.texts: list[list[int]] = []
        self.paths: list[list[list[int]]] = []

    def prefill(self, texts: list[list[int]]) -> None:
        self.drafter.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
        self.texts += texts
        self.paths += [[] for _ in texts]

    def ask(self, nodes: list[list[tuple[int, int]]]) -> None:
        requests = [
            Request(torch.tensor([token for token, _ in row]), torch.tensor([parent for _, parent in row]))
            if row
            else None
            for row in nodes
        ]
        logits = self.drafter.distributions(requests)
        for row, asked in enumerate(nodes):
            for column, (token, parent) in enumerate(asked):
                path = [*(self.paths[row][parent] if parent >= 0 else []), token]
                self.paths[row].append(path)
                expected = path_logits(self.oracle, self.texts[row], path, **self.sizes)
                found, right = logits[row, column].softmax(-1), expected.softmax(-1)
                assert float((found - right).abs().max()) < 1e-6, (row, path)

    def release(self, row: int) -> None:
        self.drafter.release([row])
        del self.texts[row], self.paths[row]

    def commit(self, paths: list[list[int]]) -> None:
        self.drafter.commit(
            [Outcome(range(len(path)), path, extra=1, bonus=False, drafted=len(path)) for path in paths]
        )
        self.texts = [text + path for text, path in zip(self.texts, paths, strict=True)]
        self.paths = [[] for _ in self.texts]


@pytest.mark.parametrize(("sinks", "window"), [(4, 7), (0, 1), (2, 64)])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_the_models_own_forward_under_a_mask_with_its_true_keys(name, sinks, window):
    rng = random.Random(window)
    rows = Rounds(MODELS[name], sinks=sinks, window=window)
    rows.prefill([words(length) for length in (40, 3, 0, 12, 21)])
    for number in range(4):
        rows.ask([[(rng.randrange(VOCAB), -1)] for _ in rows.texts])
        rows.ask([[(rng.randrange(VOCAB), 0) for _ in range(rng.randint(0, 2))] for _ in rows.texts])
        if number == 1:
            rows.release(0)  # the longest one, so that the others' nodes stay beyond where they would begin
        rows.ask([[(rng.randrange(VOCAB), len(paths) - 1)] for paths in rows.paths])
        rows.commit([paths[-1][: rng.randint(1, 3)] + words(number) for paths in rows.paths])
        if number == 2:
            rows.prefill([words(33)])


class DraftsBefore(TransformerBackend):
    """A backend that drafts some nodes before every tree."""

    def extend(self, tokens: Any, parents: Any, counts: Any = None, **options: Any) -> Any:
        if not self._region.counts.any() and self._rows:
            rows = len(self._rows)
            drafted = torch.arange(3 * rows).reshape(rows, 3) % self.vocab_size
            for below in (-1, 1):
                self.extend_in_window(drafted, torch.full((rows, 3), below), sinks=1, window=2)
        return super().extend(tokens, parents, counts, **options)


def test_the_law_of_states_holds_with_drafts_in_between():
    check_strategy(DraftsBefore(LLAMA))


def drafter_of(model: Any, **options: Any) -> DrafterWithTarget:
    backend = load(model)
    return DrafterWithTarget(backend, Windowed(backend, **options))


def test_it_keeps_what_every_drafter_must():
    check_strategy(drafter_of(LLAMA, sinks=2, window=5))


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (Chain(2), RecursiveRejection()),
        (FixedTree(2, 2, 4), Traversal()),
        (DySpec(3), RecursiveRejection()),
    ],
)
def test_the_targets_law_comes_out(policy, verifier):
    small = tiny(vocab_size=3, eos_token_id=None, pad_token_id=None).double()
    backend = TransformerBackend(small)  # of too few tokens for the check of `load`
    drafter = DrafterWithTarget(backend, Windowed(backend, sinks=1, window=1))
    law = assert_lossless(
        policy, verifier, target=ToyModel(3, seed=5), drafter=drafter, prompt=(0, 1, 2, 0, 1)
    )
    assert law.expected_tokens > 1


@pytest.mark.parametrize("window", [3, 500])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_texts_are_those_of_generate(name, window):
    model, prompts = MODELS[name], [words(30), words(4), words(17)]
    backend = load(model)
    decoder = SpeculativeDecoder(
        backend, Windowed(backend, window=window), FixedTree(3, 2, 8, law="top-k"), Greedy()
    )
    out: Any = decoder.generate(prompts, max_new_tokens=24, eos_token_id=[], return_dict_in_generate=True)
    for prompt, tokens in zip(prompts, out.tokens, strict=True):
        plain = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens == plain[0, len(prompt) :].tolist()
    assert out.statistics.tokens_per_round > 1.2
    if window == 500:  # it drafts with all of the text, so every draft is right
        assert out.statistics.figure("depth_share") == 1


def test_a_sampled_row_does_not_depend_on_the_rows_next_to_it():
    prompts = [words(30), words(4)]
    backend = load(LLAMA)
    decoder = SpeculativeDecoder(backend, Windowed(backend, window=5), FixedTree(2, 2), RecursiveRejection())
    options: dict[str, Any] = {
        "max_new_tokens": 16,
        "return_dict_in_generate": True,
        "sampling": SamplingParams(temperature=0.8),
    }
    write: Any = decoder.generate
    together = write(prompts, seed=[4, 5], **options).tokens
    assert together == [write([prompts[row]], seed=[4 + row], **options).tokens[0] for row in range(2)]


def test_a_text_may_reach_the_end_of_the_context():
    model = tiny(hf.GPT2Config, max_position_embeddings=24).double()
    backend = load(model)
    decoder = SpeculativeDecoder(backend, Windowed(backend, window=5), Chain(4, "top-k"), Greedy())
    out: Any = decoder.generate([words(9), words(13)], eos_token_id=[], return_dict_in_generate=True)
    for length, tokens in zip((9, 13), out.tokens, strict=True):
        ids = torch.tensor([words(length)])
        for token in tokens:
            assert int(model(ids).logits[0, -1].argmax()) == token
            ids = torch.cat([ids, torch.tensor([[token]])], 1)
        assert ids.shape[1] == 25


def test_prompts_that_the_models_own_forward_reads():
    ids = torch.tensor([[0, 0, *words(20)], words(22)])
    mask = torch.tensor([[0, 0, *[1] * 20], [1] * 22])
    backend = load(LLAMA)
    decoder = SpeculativeDecoder(backend, Windowed(backend, window=4), Chain(3, "top-k"), Greedy())
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": [], "return_dict_in_generate": True}
    plain: Any = decoder.generate(ids, mask, **options)
    ours: Any = decoder.generate(ModelPrompt.of(LLAMA, ids, attention_mask=mask), **options)
    assert ours.tokens == plain.tokens
    outcomes = [
        [[record.outcome for record in one.rows] for one in out.statistics.rounds] for out in (ours, plain)
    ]
    assert outcomes[0] == outcomes[1]


def test_it_may_be_one_of_several_that_are_asked_by_name():
    backend = load(LLAMA)
    both = Named({"window": Windowed(backend, window=4), "lookup": PromptLookup(VOCAB)})
    decoder = SpeculativeDecoder(backend, both, Chain(3, "top-k"), Greedy())
    out: Any = decoder.generate([words(30)], max_new_tokens=12, eos_token_id=[])
    (tokens,) = out.tolist()
    plain = LLAMA.generate(torch.tensor([words(30)]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert tokens == plain[0].tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToyBackend(ToyModel(3)),
        lambda: load(recurrent_models.build("bamba")),
        lambda: load(bloom()),
        lambda: TransformerBackend(tiny(), capture="compile"),
    ],
    ids=["declares nothing", "recurrent layers", "paths", "captured"],
)
def test_a_target_that_reads_no_windows_is_refused(make):
    target = make()
    with pytest.raises(UnsupportedModel, match=r"reads no window of a text .*; draft with a model"):
        Windowed(target)
    with pytest.raises(UnsupportedModel, match="reads no window of a text: its reads_windows is False"):
        target.extend_in_window(torch.zeros(0, 1), torch.zeros(0, 1), sinks=1, window=1)


def test_wrong_calls_are_refused_in_a_sentence():
    backend = load(LLAMA)
    with pytest.raises(InvalidInput, match="target is 'llama-7m', a model"):
        Windowed("llama-7m")
    with pytest.raises(InvalidInput, match="sinks is -1; give an integer >= 0"):
        Windowed(backend, sinks=-1)
    with pytest.raises(InvalidInput, match="window is 0; give an integer >= 1"):
        Windowed(backend, window=0)
    other = SpeculativeDecoder(load(LLAMA), Windowed(backend), Chain(2), RecursiveRejection())
    with pytest.raises(InvalidInput, match=r"target holds 0 row\(s\), not the 1 .* same backend object"):
        other.generate([[0, 1]], max_new_tokens=3)
    one = torch.tensor([[1]])
    backend.prefill([torch.tensor(words(9))])
    with pytest.raises(InvalidInput, match="sinks is 0 and window 0; give at least 0 and 1"):
        backend.extend_in_window(one, -one, sinks=0, window=0)
    backend.extend(one, -one)
    with pytest.raises(InvalidInput, match="cannot be drafted while there are uncommitted ones"):
        backend.extend_in_window(one, -one, sinks=1, window=1)


def test_from_the_command_line():
    prompt = "def add(a, b):\n"
    ids = torch.tensor([zoo.tokenizer()(prompt)["input_ids"]])
    model: Any = zoo.load("llama-7m")
    new = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    command = ["generate", "--drafter", "windowed", "-o", "window=6", "-o", "sinks=2", "--prompt", prompt]
    result = CliRunner().invoke(app, [*command, "--json", "--max-new-tokens", "20"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tokens"] == new


def test_two_windows_over_one_target_are_refused():
    """The nodes that one drafted would stand among those of the other."""
    target, draft = load(LLAMA), load(copy.deepcopy(LLAMA))
    ways: list[Any] = [
        lambda *members: Several(members),
        lambda *members: Named({str(number): member for number, member in enumerate(members)}),
    ]
    for together in ways:
        with pytest.raises(InvalidInput, match="have the same target, and it holds the drafted nodes of one"):
            together(Windowed(target, window=8), Windowed(target, window=16))
        together(Windowed(target), Windowed(draft), LayerSkip(target, (0,)))
