"""Constraints on toy models, enumerated: the law is that of masked sampling; and spans that they force."""

from typing import Any

import attrs
import pytest
import torch

from draftwood import Constraint, SamplingParams, SpeculativeDecoder, Streams, WithoutReplacement
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.stopping import RowStops
from draftwood.distributions import forced_tokens as forced_module
from draftwood.distributions.constraints import ConstrainedRow
from draftwood.distributions.forced_tokens import with_forced_tokens, without_forced_tokens
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel, enumerate_outcomes
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree
from tests.thorough import marks_unless

TARGET = ToyModel(3, seed=1)
DRAFT = ToyModel(3, seed=2, near=TARGET)
TEMPERATURE = 0.7


@attrs.frozen
class Table(Constraint):
    """A state is a number; `follows[state]` holds the tokens that may follow it, with the next states."""

    follows: dict

    def start(self, prompt):
        return 0

    def advance(self, state, token):
        return self.follows[state].get(token)

    def masks(self, states, vocab_size):
        return torch.tensor([[token in self.follows[s] for token in range(vocab_size)] for s in states])


# Behind a 1 come 2 and 0, and nothing else; behind a 0 anything; two of 2 never stand side by side.
SPANS = Table({0: {0: 0, 1: 1, 2: 3}, 1: {2: 2}, 2: {0: 0}, 3: {0: 0, 1: 1}})


def written_law(policy, verifier, constraint, tokens, eos=frozenset()):
    """The law of the first `tokens` tokens, over all rounds that they take."""

    def write(rng):
        sampling = SamplingParams(temperature=TEMPERATURE)
        backend, drafter = ToyBackend(TARGET), ModelDrafter(ToyBackend(DRAFT))
        settings, stops = RowSettings(sampling, sampling), RowStops(0, eos, tokens)
        row = BatchRow(0, 0, policy, Streams(rng, rng), stops, settings)
        row.constraint = ConstrainedRow.started(constraint, [0], vocab_size=3, ends=eos)
        loop = RoundLoop(target=backend, drafter=drafter, verifier=verifier, held=[row])
        for one in (backend, drafter):
            one.prefill([torch.tensor([], dtype=torch.int64)])
        text = list[int]()
        while loop.rows:
            text += loop.run().rows[0].tokens
        return tuple(text)

    law = dict[Any, float]()
    for weight, text in enumerate_outcomes(write):
        law[text] = law.get(text, 0.0) + weight
    return law


def masked_law(constraint, tokens, eos=frozenset()):
    """Returns the law of sampling one token after another under the constraint."""
    law, open_ = dict[Any, float](), dict[Any, Any]({(): (1.0, constraint.start([0]))})
    while open_:
        text, (weight, state) = open_.popitem()
        if len(text) == tokens or (text and text[-1] in eos):
            law[text] = weight
            continue
        mask = constraint.masks([state], 3)[0]
        probs = TARGET.logits((0, *text)).masked_fill(~mask, -torch.inf).div(TEMPERATURE).softmax(-1)
        for token in mask.nonzero().flatten().tolist():
            open_[*text, token] = weight * float(probs[token]), constraint.advance(state, token)
    return law


@pytest.mark.parametrize(
    ("policy", "verifier", "spans"),
    [
        pytest.param(policy, verifier, spans, marks=marks_unless(spans or not place))
        for spans in (True, False)
        for place, (policy, verifier) in enumerate(
            (
                (Chain(2), RecursiveRejection()),
                (Chain(2), Block()),
                (FixedTree(depth=1, branching=2), Traversal()),
                (DySpec(budget=3), RecursiveRejection()),
            )
        )
    ],
    ids=lambda one: one if isinstance(one, bool) else type(one).__name__,
)
def test_the_law_is_that_of_masked_sampling(policy, verifier, spans, monkeypatch):
    if not spans:
        monkeypatch.setattr(forced_module, "_LONGEST", 0)
    for eos in (frozenset(), frozenset({0})):
        actual, expected = written_law(policy, verifier, SPANS, 3, eos), masked_law(SPANS, 3, eos)
        assert max(abs(actual.get(t, 0) - expected.get(t, 0)) for t in {*actual, *expected}) < 1e-9


def row_of(constraint, ends=()):
    return ConstrainedRow.started(constraint, [0], vocab_size=3, ends=frozenset(ends))


def bare(*tokens, parents=None):
    parents = list(range(-1, len(tokens) - 1)) if parents is None else parents
    return TokenTree(torch.tensor(tokens), torch.tensor(parents))


def longer(tree, ends=(), laws=(WithoutReplacement,)):
    like = torch.zeros(3, dtype=torch.float64)
    return with_forced_tokens(tree, row_of(SPANS, ends), laws=laws, like=like, deepest=99)


def test_every_leaf_goes_on_as_far_as_it_must():
    # Leaves: 1, which 2 and then 0 must follow, and 0 1 2, which 0 must.
    tree = bare(0, 1, 0, 1, 2, parents=[-1, 0, 0, 2, 3])
    actual = longer(tree)
    assert actual.tokens.tolist() == [0, 1, 0, 1, 2, 2, 0, 0]
    assert actual.parents.tolist() == [-1, 0, 0, 2, 3, 1, 4, 5]
    for node, token in ((1, 2), (4, 0), (5, 0)):
        assert actual.proposals[node].conditional(0, ()).tolist() == [float(t == token) for t in range(3)]
    assert longer(bare(0, 2)).size == 2  # two may follow


def test_a_span_is_bounded_and_never_adds_an_end():
    for_ever = Table({0: {1: 0}})
    like = torch.zeros(3)
    actual = with_forced_tokens(bare(0), row_of(for_ever), laws=[WithoutReplacement], like=like, deepest=99)
    assert actual.size == 1 + forced_module._LONGEST
    assert longer(bare(0, 1), ends={0}).tokens.tolist() == [0, 1, 2]
    assert longer(bare(0, 1), ends={2}).tokens.tolist() == [0, 1]


def test_a_policy_learns_from_its_own_nodes_alone():
    outcome = Outcome(path=(0, 1, 4, 5), tokens=(0, 1, 2, 0), extra=1, bonus=False, drafted=5)
    own = without_forced_tokens(outcome, 3)
    assert own == Outcome(path=(0, 1), tokens=(0, 1), extra=2, bonus=True, drafted=2)
    assert without_forced_tokens(outcome, 6) == outcome


def test_forced_tokens_take_no_draft_pass_and_few_rounds():
    decoder = SpeculativeDecoder(
        ToyBackend(TARGET), ModelDrafter(ToyBackend(DRAFT)), Chain(1), RecursiveRejection()
    )
    forced = Table({n: {n % 3: n + 1} for n in range(40)})
    actual: Any = decoder.generate([[0]], max_new_tokens=30, constraint=forced, return_dict_in_generate=True)
    assert actual.tokens == [[n % 3 for n in range(30)]]
    # A drafted token, 16 that it forces, and one more of the target's.
    assert actual.statistics.target_calls == 2
    assert actual.statistics.draft_calls == 2
