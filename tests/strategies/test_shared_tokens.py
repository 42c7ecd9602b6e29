"""Drafts of another vocabulary: every answer is the draft's own about the text that both can read."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Request,
    SpeculativeDecoder,
    TreeBuilder,
    WithoutReplacement,
    draw_children,
    load,
    zoo,
)
from draftwood.protocols import registry
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.retokenised import retokenised
from draftwood.strategies.drafters.shared_tokens import SharedTokens
from draftwood.strategies.drafters.suffix_cache import SuffixCache
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from draftwood.strategies.drafters.token_map import Text, TokenMap, token_texts
from draftwood.strategies.laws import SingleLawPolicy
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.k_sequential import KSequential
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import (
    LawBroken,
    NextTokenModel,
    ToyBackend,
    ToyModel,
    assert_lossless,
    assert_proposal_law,
    checks_for,
    parametrize_with_checks,
)

# The draft lacks "ab", and has the others under other numbers; it has "c", which the target lacks.
TARGET: list[Text] = [b"a", b"b", b"ab", "eos"]
DRAFT: list[Text] = [b"c", "eos", b"b", b"a"]


def small_map():
    return TokenMap.of(TARGET, DRAFT)


def test_a_map_says_what_both_have_and_spells_the_rest():
    known = small_map()
    assert known.to_draft.tolist() == [3, 2, -1, 1]
    assert known.spellings == ((3,), (2,), (3, 2), (1,))
    assert (known.shared, known.overlap) == (3, 0.75)
    assert known.coverage([0, 2, 2, 1]) == 0.5
    assert known.spelled([2, 0, 3]) == [3, 2, 3, 1]


def test_what_has_no_text_reads_as_an_end_of_text():
    known = TokenMap.of([b"a", None, b"z", "<|tool|>"], [b"<|", "eos", b"a", b"tool", b"|", b">", b"|>"])
    assert known.spellings == ((2,), (1,), (1,), (0, 3, 6))
    assert TokenMap.of([b"a", b"z"], [b"a"]).spellings == ((0,), (0,))


def test_of_tokens_with_one_text_the_first_is_taken():
    assert TokenMap.of([b"a", b"a"], [b"b", b"a", b"a"]).to_draft.tolist() == [1, 1]


def test_vocabularies_without_a_common_token_are_refused():
    with pytest.raises(IncompatibleModels, match="The 1 tokens of the target and the 2 of the draft have no"):
        TokenMap.of([b"a"], [b"b", None])
    with pytest.raises(IncompatibleModels, match="map is for a draft of 4 tokens and this one has 5"):
        SharedTokens(PromptLookup(5), small_map())
    with pytest.raises(InvalidInput, match="The text has no token"):
        small_map().coverage([])


@given(st.lists(st.binary(max_size=3), max_size=6), st.lists(st.binary(max_size=3), max_size=6))
def test_a_spelling_says_what_the_token_says(target, draft):
    both = b"both"
    known = TokenMap.of([*target, both], [*draft, both])
    for text, spelling in zip([*target, both], known.spellings, strict=True):
        said = b"".join([*draft, both][part] for part in spelling)
        assert said == text or spelling == (0,)


# --- tokenizers ---


def byte_pairs(tokens, *, special=()):
    """A tokenizer of transformers that writes bytes by GPT-2's alphabet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: n for n, token in enumerate([*tokens, *alphabet])}, []))
    plain.pre_tokenizer, plain.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return PreTrainedTokenizerFast(tokenizer_object=plain, **dict(special))


def pieces(tokens, **special):
    """One that writes spaces as U+2581."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token="<unk>"))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, **special)


def test_texts_of_tokens_are_bytes_whatever_the_tokenizer_writes_for_them():
    ours = byte_pairs(
        ["Ġthe", "Ã¤"], special={"eos_token": "<|end|>", "additional_special_tokens": ["<|x|>"]}
    )
    texts = token_texts(ours, len(ours) + 2)
    assert texts[:2] == [b" the", "ä".encode()]
    assert set(texts[2:258]) == {bytes([byte]) for byte in range(256)}
    assert (texts[ours.eos_token_id], texts[-2:]) == ("eos", [None, None])
    assert "<|x|>" in texts

    theirs = pieces(["<unk>", "</s>", "▁the", "<0xC3>", "the", "▁"], eos_token="</s>", unk_token="<unk>")
    assert token_texts(theirs, 6) == ["unk", "eos", b" the", b"\xc3", b"the", b" "]
    known = TokenMap.between(ours, theirs, target_size=len(ours), draft_size=6)
    assert known.to_draft[[0, ours.eos_token_id]].tolist() == [2, 1]


def test_a_special_token_that_stands_for_another_one_is_known_by_its_role():
    both = zoo.tokenizer()
    texts = token_texts(both, 4100)
    assert texts[both.eos_token_id] == "eos"
    assert texts[both("the")["input_ids"][0]] == b"the"
    assert TokenMap.between(both, both, target_size=4096, draft_size=4096).overlap == 1


# --- the drafter ---

MODEL = ToyModel(4, seed=3)


def logits_of_shared(tokens):
    logits = MODEL.logits(small_map().spelled(tokens))
    return torch.stack([logits[3], logits[2], torch.tensor(-torch.inf, dtype=logits.dtype), logits[1]])


def shared():
    return SharedTokens(ModelDrafter(ToyBackend(MODEL)), small_map())


@pytest.mark.parametrize("name", [name for name, _ in checks_for(shared())])
def test_every_answer_is_the_drafts_own_about_the_spelled_text(name):
    dict(checks_for(shared(), oracle=logits_of_shared))[name]()


@parametrize_with_checks([SharedTokens(PromptLookup(4), small_map())])
def test_every_check_of_a_drafter(check):
    check()


def test_it_passes_on_what_the_drafter_declares():
    backend = ToyBackend(MODEL)
    drafter = SharedTokens(ModelDrafter(backend), small_map())
    assert drafter.backends == (backend,)
    assert (drafter.vocab_size, drafter.drafters, drafter.remembers) == (4, 1, False)
    kept = registry.create("drafters", "suffix-cache", {"vocab_size": 4})
    assert SharedTokens(kept, small_map()).remembers


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (DySpec(2), RecursiveRejection()),
        (FixedTree(2, (2, 1)), Traversal()),
        (FixedTree(2, (2, 1), law="top-k"), RecursiveRejection()),
        (FixedTree(2, (2, 1), law="with-replacement"), RecursiveRejection()),
        (Chain(2), Block()),
    ],
    ids=str,
)
def test_it_is_lossless_under_every_law(policy, verifier):
    assert_lossless(policy, verifier, target=ToyModel(4, seed=1), drafter=shared(), prompt=(2, 0), tokens=2)


# --- a hundred tokens, of which both have 99 ---

# The target's last token is its first two, which the draft has alone; of the draft's one no target has.
LETTERS: list[Text] = [bytes([33 + number]) for number in range(99)]
HUNDRED: list[Text] = [*LETTERS, b"!\x22"]
ORDER = [37 * number % 100 for number in range(100)]
"""The target's numbers of the draft's tokens; 99 stands for the draft's own."""
# Few tokens are open in a context, so that they can be enumerated.
LARGE = ToyModel(100, seed=26, sparsity=0.96)
NEAR = ToyModel(100, seed=7, sparsity=0.98, near=LARGE, mix=0.7)


@attrs.frozen(eq=False)
class Renumbered(NextTokenModel):
    """`NEAR` by the draft's numbers, to which the two letters of token 99 are one."""

    def logits(self, text):
        read: list[int] = []
        for token in (ORDER[number] for number in text):
            if token == 1 and read[-1:] == [0]:
                read[-1] = 99
            else:
                read.append(token)
        return NEAR.logits(read)[ORDER]


def large_map(**changes):
    return attrs.evolve(TokenMap.of(HUNDRED, [[*LETTERS, b"\xff"][token] for token in ORDER]), **changes)


def of_a_hundred(tokens=None):
    return SharedTokens(ModelDrafter(ToyBackend(Renumbered(100))), tokens or large_map())


@pytest.mark.parametrize(
    ("policy", "verifier", "rounds"),
    [
        (Chain(1), RecursiveRejection(), None),
        (Chain(2), Block(), 1),
        (FixedTree(1, 2), RecursiveRejection(), 1),
        (FixedTree(1, 2, law="with-replacement"), KSequential(), 1),
        (FixedTree(2, (2, 1), law="top-k"), Traversal(), 1),
        (DySpec(2), RecursiveRejection(), 1),
    ],
    ids=str,
)
def test_it_is_lossless_with_99_of_a_hundred_tokens(policy, verifier, rounds):
    """Texts with the token that the draft lacks, and texts where the target may write it."""
    drafter = of_a_hundred()
    assert drafter.tokens.overlap == 0.99
    assert [ORDER[part] for part in drafter.tokens.spellings[99]] == [0, 1]
    options: Any = {"target": LARGE, "drafter": drafter, "prompt": (2, 99, 0), "tokens": 2, "rounds": rounds}
    law = assert_lossless(policy, verifier, **options)
    assert law.expected_tokens > 1.2
    assert sum(chance for text, chance in law.probabilities.items() if 99 in text) > 0.01


def test_a_wrong_map_writes_the_targets_law_and_drafts_otherwise():
    """One that offers a token that the draft lacks, or takes the draft's tokens for their neighbours."""
    known, text = large_map(), torch.tensor([2, 99])
    options: Any = {"target": LARGE, "prompt": (2, 99, 0), "tokens": 2, "rounds": 1}
    best = assert_lossless(Chain(2), RecursiveRejection(), drafter=of_a_hundred(), **options)
    offered = np.where(known.to_draft < 0, known.to_draft[14], known.to_draft)
    for wrong in (offered, np.where(known.to_draft < 0, -1, (known.to_draft + 1) % 100)):
        drafter = of_a_hundred(large_map(to_draft=wrong))
        law = assert_lossless(Chain(2), RecursiveRejection(), drafter=drafter, **options)
        assert law.expected_tokens != pytest.approx(best.expected_tokens)
        answers = []
        for one in (drafter, of_a_hundred()):
            one.prefill([text])
            answers.append(one.distributions([Request(torch.tensor([0]), torch.tensor([-1]))]))
        assert not torch.equal(*answers)


@attrs.frozen
class MapsWhatWasDrawn(SingleLawPolicy):
    """A child drawn by the draft's numbers, which a map with one wrong entry then makes the target's."""

    drawn_as: tuple[int, int]
    law: Any = WithoutReplacement
    branches = False

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        (drawn,) = draw_children(self.law, probs, count=1, rng=rng)
        tokens = [self.drawn_as[1] if token == self.drawn_as[0] else token for token in drawn.tokens]
        tree.add_children(0, tokens, drawn.proposal)
        return tree.finish()


def test_a_map_of_drawn_tokens_alone_breaks_both_laws():
    drafter = of_a_hundred()
    drafter.prefill([torch.tensor([2, 99])])
    logits = drafter.distributions([Request(torch.tensor([0]), torch.tensor([-1]))])
    drafter.release()
    first, second = logits[0, 0].topk(2).indices.tolist()
    policy = MapsWhatWasDrawn((first, second))
    with pytest.raises(LawBroken, match="MapsWhatWasDrawn"):
        assert_proposal_law(policy, drafter, prompt=(2, 99, 0))
    with pytest.raises(LawBroken):
        assert_lossless(
            policy, RecursiveRejection(), target=LARGE, drafter=drafter, prompt=(2, 99, 0), tokens=2, rounds=1
        )


# --- two vocabularies on the zoo's pair ---


def reordered(share, seed=0):
    """llama-draft with its tokens in another order and a `share` of them replaced, and the map to it."""
    from benchmarks.research.vocabularies import with_another_vocabulary

    return with_another_vocabulary(zoo.load("llama-draft"), zoo.tokenizer(), missing=share, seed=seed)


def test_a_draft_with_its_tokens_in_another_order_drafts_the_same():
    target: Any = load(zoo.load("llama-7m"))
    prompt = [zoo.tokenizer()("def read(path):\n").input_ids]
    outs = []
    for drafter in (ModelDrafter(load(zoo.load("llama-draft"))), reordered(0.0)):
        decoder = SpeculativeDecoder(target, drafter, LayeredDySpec(8, law="top-k"), Greedy())
        outs.append(decoder.generate(prompt, max_new_tokens=24, return_dict_in_generate=True))
    own, other = outs
    assert torch.equal(own.sequences, other.sequences)  # type: ignore[union-attr]
    assert own.statistics.tokens_per_round == other.statistics.tokens_per_round  # type: ignore[union-attr]


def test_greedy_text_is_that_of_generate_with_one_token_in_a_hundred_missing():
    model: Any = zoo.load("llama-7m")
    prompt = zoo.tokenizer()("def read(path):\n", return_tensors="pt").input_ids
    expected = model.generate(prompt, max_new_tokens=24, do_sample=False)[0]
    drafter = reordered(0.01)
    assert drafter.tokens.shared == round(0.99 * 4096)
    decoder = SpeculativeDecoder(load(model), drafter, LayeredDySpec(8, law="top-k"), Greedy())
    out: Any = decoder.generate(prompt, max_new_tokens=24, return_dict_in_generate=True)
    assert torch.equal(out.sequences[0], expected)
    assert out.statistics.tokens_per_round > 1.5


# --- texts in another vocabulary ---


def test_texts_are_written_anew_in_another_vocabulary():
    old, new = zoo.tokenizer(), byte_pairs([], special={"eos_token": "<|end|>"})
    words = "Tom has 3 äpfel."
    rows = [[*old(words).input_ids, old.eos_token_id, *old(" So").input_ids], []]
    first, *rest = retokenised(rows, old, new)
    assert [new.decode(row) for row in [first]] == [f"{words}<|end|> So"]
    assert first.tolist().count(new.eos_token_id) == 1
    assert not rest


def test_kept_texts_can_be_written_anew():
    rows = [[1, 2, 3], [1, 2, 4], [5]]
    cache = SuffixCache(9)
    for row in rows:
        cache.append(cache.begin(row[:2]), row[2:])
    assert [row.tolist() for row in cache.documents()] == [[1, 2, 3], [1, 2, 4], [5]]
    index = SuffixIndex.of([np.array(row) for row in rows], vocab_size=9)
    assert [row.tolist() for row in index.documents()] == rows
