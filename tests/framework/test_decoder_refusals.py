"""The decoder: what it refuses, and that it works again afterwards."""

import attrs
import pytest
import torch

from draftwood import (
    Deterministic,
    IncompatibleModels,
    IncompatibleStrategy,
    InvalidDistribution,
    InvalidInput,
    InvalidTree,
    SamplingParams,
    TokenTree,
    TreePolicy,
)
from draftwood.protocols import registry
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder, drafter, sequentially


def test_an_abandoned_stream_releases_its_rows():
    one = decoder()
    next(one.stream(PROMPTS, max_new_tokens=12))
    assert one.generate(PROMPTS[:1], max_new_tokens=5)[0, 3:].tolist() == sequentially(PROMPTS[0], 5)


def test_two_streams_on_one_backend_are_refused():
    one = decoder()
    running = one.stream(PROMPTS, max_new_tokens=12)
    next(running)
    with pytest.raises(InvalidInput, match="already decoding 3 row"):
        one.generate(PROMPTS, max_new_tokens=5)
    assert len(list(running)) > 0


@attrs.define(eq=False)
class Failing(ModelDrafter):
    """Raises in the third call, then behaves."""

    error: BaseException = attrs.field(default=RuntimeError("no luck"), kw_only=True)
    calls: int = 0

    def distributions(self, requests):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return super().distributions(requests)


def test_after_an_error_the_decoder_is_usable_again():
    one = decoder(draft=Failing(ToyBackend(DRAFT)))
    with pytest.raises(RuntimeError, match="no luck"):
        one.generate(PROMPTS, max_new_tokens=20)
    out = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert out.tokens == [sequentially(p, 20) for p in PROMPTS]


class Impatient(ToyBackend):
    """Ctrl-C comes in a pass, and again before the rows are released."""

    presses = 0

    def extend(self, *args):
        self.presses += 1
        if self.presses == 2:
            raise KeyboardInterrupt
        return super().extend(*args)

    def release(self, rows=None):
        if self.presses == 2:
            self.presses += 1
            raise KeyboardInterrupt
        super().release(rows)


def test_ctrl_c_twice_leaves_no_rows():
    target = Impatient(TARGET)
    one = decoder(target=target)
    out = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert (target.presses, out.finish_reasons) == (3, ["interrupted"] * 3)
    assert target.lengths == one.drafter.backend.lengths == []
    again = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert again.tokens == [sequentially(p, 20) for p in PROMPTS]


def test_ctrl_c_keeps_what_was_generated():
    one = decoder(Chain(2), draft=Failing(ToyBackend(DRAFT), error=KeyboardInterrupt()))
    out = one.generate(PROMPTS, max_new_tokens=20, return_dict_in_generate=True)
    assert out.finish_reasons == ["interrupted"] * 3
    for prompt, new in zip(PROMPTS, out.tokens, strict=True):
        assert 0 < len(new) < 20
        assert new == sequentially(prompt, 20)[: len(new)]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "No prompt"),
        ([[1], []], "prompt of row 1 is empty"),
        ([[1, 2, 5]], "token 5, outside the vocabulary of 5"),
        ([[1, -1]], "token -1"),
        ([[1] * 11], "has 11 tokens and the target's context holds 10"),
    ],
)
def test_unusable_prompts_are_refused(prompts, message):
    with pytest.raises(InvalidInput, match=message):
        decoder(target=ToyBackend(TARGET, max_length=10)).generate(prompts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"seed": [1, 2]}, "2 seeds were given for 1 rows"),
        ({"seed": -3}, "seed is -3"),
        ({"stop_strings": "x"}, "needs the tokenizer"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        decoder().generate([[1]], **options)


def test_a_mask_must_fit_the_ids():
    with pytest.raises(InvalidInput, match="attention_mask has shape"):
        decoder().generate(torch.tensor([[1, 2]]), torch.ones(1, 3))
    with pytest.raises(InvalidInput, match="attention_mask is 0 for all tokens of row 1"):
        decoder().generate(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 1], [0, 0]]))


def test_strategies_that_do_not_fit_are_refused_at_construction():
    @attrs.frozen
    class TopKOnly(RecursiveRejection):
        laws = frozenset({Deterministic})
        adaptive = False

    with pytest.raises(
        IncompatibleStrategy, match=r"does not verify the law WithoutReplacement.*recursive-rejection"
    ):
        decoder(Chain(3), TopKOnly())
    with pytest.raises(IncompatibleStrategy, match="PerChild"):
        decoder(FixedTree(2, 2, law="per-drafter"))
    with pytest.raises(IncompatibleStrategy, match="only supports temperature 0, not 0.7"):
        decoder(Chain(3), Greedy()).generate([[1]], sampling=SamplingParams(0.7))
    with pytest.raises(IncompatibleModels, match="drafter has 4 tokens and the target 5"):
        decoder(draft=drafter(ToyModel(4)))


def test_a_verifier_that_looks_at_several_siblings_refuses_adaptive_trees():
    @attrs.frozen
    class Transport(RecursiveRejection):
        adaptive = False

    decoder(FixedTree(2, 2), Transport())
    with pytest.raises(IncompatibleStrategy, match="adaptive trees of DySpec"):
        decoder(DySpec(4), Transport())


def test_a_verifier_that_judges_chains_alone_refuses_trees_that_branch():
    @attrs.frozen
    class OnePath(RecursiveRejection):
        branches = False

    decoder(Chain(3), OnePath())
    with pytest.raises(
        IncompatibleStrategy, match="OnePath only judges chains.* of FixedTree; .*recursive-rejection"
    ):
        decoder(FixedTree(2, 2), OnePath())


def test_the_fitting_verifiers_are_found_whatever_else_is_registered(monkeypatch):
    @attrs.frozen
    class Orderly(RecursiveRejection):
        """Judges adaptive trees with only one of its options, as its attribute says."""

        way: str = "drawn"

        @property
        def adaptive(self):  # type: ignore[override]
            return self.way == "drawn"

    @attrs.frozen
    class Lossy(RecursiveRejection):
        lossless = False

    def needs_an_option(option): ...

    known = {
        "broken": "nothing",
        "lossy": Lossy,
        "needs-an-option": needs_an_option,
        "orderly": Orderly,
        "reordered": lambda: Orderly("other"),
    }
    monkeypatch.setattr(registry, "names", lambda kind: list(known))
    monkeypatch.setattr(registry, "get", lambda kind, name: known[name])
    with pytest.raises(
        IncompatibleStrategy, match=r"adaptive trees of DySpec; verifiers that fit: orderly\."
    ):
        decoder(DySpec(4), Orderly("other"))


def test_a_policy_that_returns_a_broken_tree_is_named():
    @attrs.frozen
    class Broken(TreePolicy):
        tree: object = None
        laws = frozenset({Deterministic})

        def grow(self, root, rng):
            return self.tree
            yield

    with pytest.raises(InvalidTree, match="returned NoneType"):
        decoder(Broken()).generate([[1]])
    bad = TokenTree(torch.tensor([1, 7]), torch.tensor([-1, 0]))
    with pytest.raises(InvalidTree, match="token 7"):
        decoder(Broken(bad)).generate([[1]])


def test_logits_with_nan_stop_the_call_and_leave_the_decoder_usable():
    @attrs.define(eq=False)
    class Once(ToyBackend):
        calls: int = 0

        def extend(self, tokens, parents, counts=None):
            self.calls += 1
            logits = super().extend(tokens, parents, counts)
            return logits * float("nan") if self.calls == 2 else logits

    one = decoder(target=Once(TARGET))
    with pytest.raises(InvalidDistribution, match="nan"):
        one.generate(PROMPTS, max_new_tokens=20)
    assert one.generate(PROMPTS[:1], max_new_tokens=9)[0, 3:].tolist() == sequentially(PROMPTS[0], 9)


@pytest.mark.parametrize("call", ["generate", "stream", "session"])
def test_an_unknown_option_is_refused_with_the_nearest(call: str) -> None:
    one = decoder()
    prompts = [] if call == "session" else [PROMPTS]
    with pytest.raises(TypeError, match="no option 'max_tokens'; did you mean 'max_new_tokens'"):
        list(getattr(one, call)(*prompts, max_tokens=4))
