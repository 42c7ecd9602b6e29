"""One level of children, judged on every pair of distributions that a rule might stumble over."""

import torch
from hypothesis import example
from hypothesis import strategies as st

from draftwood import PerChild, TreeBuilder, draw_children
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.testing import ToyBackend, ToyModel, enumerate_outcomes


def real(values):
    return torch.tensor(values, dtype=torch.float64)


def distributions(vocab):
    """float64 `[vocab]` with ties, zeros, one-hot rows and denormals among them."""
    weight = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 7.0, 1e-9, 1e-310]) | st.floats(0, 1)
    rows = st.lists(weight, min_size=vocab, max_size=vocab).filter(lambda row: sum(row) > 1e-3)
    return rows.map(lambda row: real(row) / sum(row))


pairs_of_distributions = st.integers(2, 4).flatmap(
    lambda vocab: st.tuples(distributions(vocab), distributions(vocab))
)
ONE_HOT = torch.eye(3, dtype=torch.float64)
EDGES = [
    (ONE_HOT[0], ONE_HOT[1]),  # no overlap
    (ONE_HOT[0], ONE_HOT[0]),
    (torch.full((3,), 1 / 3, dtype=torch.float64),) * 2,  # the residual vanishes
    (real([0.5, 0.5, 0.0]), real([0.0, 0.0, 1.0])),
    (real([0.3, 0.3, 0.4]), real([1e-310, 1.0, 0.0])),
]


def on_edges(test):
    for pair in EDGES:
        test = example(pair=pair)(test)
    return test


def one_level(verifier, law, target, draft, count):
    """The law of the first token of a round over one level of children, and their acceptance."""
    vocab = len(target)
    shape = (1, count, vocab) if law is PerChild else (1, vocab)
    # Several drafters: the draft itself, and the same turned around.
    probs = torch.stack([draft, draft.flip(0), draft])[None, :count] if law is PerChild else draft.view(shape)
    rows = torch.zeros(count + 1, vocab, dtype=target.dtype)
    rows[0], rows[1:, 0] = target, 1.0

    def run(rng):
        (drawn,) = draw_children(law, probs, count=count, rng=rng)
        tree = TreeBuilder(0)
        tree.add_children(0, drawn.tokens, drawn.proposal)
        grown = tree.finish()
        return verifier.verify(grown, rows[: len(grown)], rng)

    emitted, accepted = torch.zeros(vocab, dtype=torch.float64), 0.0
    for weight, outcome in enumerate_outcomes(run):
        emitted[outcome.emitted[0]] += weight
        accepted += weight * (outcome.accepted > 0)
    return emitted, accepted


def toy(vocab=3, seed=7, sharpness=1.5):
    return ModelDrafter(ToyBackend(ToyModel(vocab, seed=seed, sharpness=sharpness)))
