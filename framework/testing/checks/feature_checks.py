"""Compares a backend's features of committed tokens with one plain forward over each text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import permutations

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend
from draftwood.testing.checks.mirror import Mirror
from draftwood.testing.diagnosis.law_broken import LawBroken, raises_on_purpose
from draftwood.testing.diagnosis.logits_mistakes import Node, path_to
from draftwood.testing.models.oracles import FeaturesAfter, prompt_of


def check_features(mirror: Mirror, oracle: FeaturesAfter | None, prompts: Sequence[list[int]]) -> None:
    """Random rounds over rows that begin with `prompts`, with features taken now and then."""
    backend = mirror.backend
    most = backend.feature_layers
    if not most:
        raises_on_purpose("keep_features", lambda: backend.keep_features([0]))
        raises_on_purpose("take_features", backend.take_features)
        return
    layers = list(dict.fromkeys([most, 0, (most + 1) // 2]))
    # Both runs below read the same texts.
    oracle = oracle and remembered(oracle)
    for wrong in ([-1], [most + 2]):
        raises_on_purpose(f"keep_features({wrong})", partial(backend.keep_features, wrong))
    for last in (None, 2):
        with keeping(backend, layers, last=last):
            beside = FeatureMirror(mirror, oracle, layers, last)
            beside.rounds(prompts)
            raises_on_purpose(
                "keep_features() of other layers while there are rows", lambda: backend.keep_features([0, 0])
            )
            mirror.release(None)
    raises_on_purpose("take_features() after keep_features([])", backend.take_features)


def check_output_head(mirror: Mirror, prompt: list[int]) -> None:
    """The output head makes the logits of the last layer's features, and embeddings are a table's."""
    backend = mirror.backend
    most, nodes = backend.feature_layers, [(2, -1), (1, 0), (3, 0), (1, 2)]
    if not most:
        raises_on_purpose("output_head", lambda: backend.output_head(torch.zeros(1, 1)))
        raises_on_purpose("input_embeddings", lambda: backend.input_embeddings(torch.tensor([1])))
        return
    with keeping(backend, [most]):
        mirror.prefill([prompt])
        mirror.extend([nodes])
        mirror.commit([[0, 2, 3]])
        (states,) = backend.take_features()
        logits, text = backend.output_head(states), mirror.texts[0]
        assert logits.shape == (len(text), backend.vocab_size), (
            f"output_head() of {tuple(states.shape)} has the shape {tuple(logits.shape)}."
        )
        for index in range(len(text)):
            expected = mirror.logits_after(text[: index + 1])
            off = _off(logits[index], expected)
            if not off <= mirror.tolerance:
                raise LawBroken(
                    f"output_head() of the features after {text[: index + 1]} is off by {off:.2e}.",
                    error=off,
                    likely="a scale or soft-cap of the logits, or the final norm, is left out or done twice.",
                )
        mirror.release(None)
    tokens = torch.tensor([[1, 2], [2, 1]], device=backend.device)
    embeddings = backend.input_embeddings(tokens)
    assert embeddings.shape == (2, 2, backend.hidden_size), (
        f"input_embeddings() has the shape {embeddings.shape}."
    )
    assert torch.equal(embeddings[0], embeddings[1].flip(0)), (
        "input_embeddings() depends on a token's position."
    )


def remembered(oracle: FeaturesAfter) -> FeaturesAfter:
    """`oracle`, asked once for a text and its layers."""
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def after(text: list[int], layers: Sequence[int]) -> Tensor:
        key = prompt_of(text), tuple(text), tuple(layers)
        if key not in known:
            known[key] = oracle(text, layers)
        return known[key]

    return after


@contextmanager
def keeping(backend: StateBackend, layers: Sequence[int], last: int | None = None) -> Iterator[None]:
    """Keep these features inside the context and none after it; with `last`, keep them twice over."""
    backend.keep_features(layers, last=last, through=twice if last else None)
    try:
        yield
    finally:
        backend.release()
        backend.keep_features([])


def twice(states: Tensor) -> Tensor:
    """`[..., width]` side by side with itself."""
    return torch.cat([states, states], -1)


@attrs.define
class FeatureMirror:
    """The expected state of every row's features: the number of its tokens that were taken."""

    mirror: Mirror
    oracle: FeaturesAfter | None
    layers: list[int]
    last: int | None
    taken: list[int] = attrs.field(factory=list)

    def rounds(self, prompts: Sequence[list[int]]) -> None:
        """Trees in one call and in two, paths of any length, rows that join and are released."""
        mirror, rng = self.mirror, random.Random(5)
        self.join([*prompts])
        self.take()
        for round_ in range(6):
            if round_ == 2:
                self.join([[2, 1, 2], []])
            for _ in range(1 + round_ % 2):
                mirror.extend([self._grown(len(uncommitted), rng) for uncommitted in mirror.nodes])
            if round_ == 3:
                mirror.release([0])
                del self.taken[0]
            ends = [rng.randint(-1, len(uncommitted) - 1) for uncommitted in mirror.nodes]
            paths = [mirror.path(row, end) for row, end in enumerate(ends)]
            nodes = [list(uncommitted) for uncommitted in mirror.nodes]
            mirror.commit(paths)
            if round_ != 4:
                self.take(paths, nodes)

    def _grown(self, have: int, rng: random.Random) -> list[Node]:
        new_nodes = range(have, have + rng.randint(2, 5))
        vocab = min(self.mirror.backend.vocab_size, 50)
        return [(rng.randrange(vocab), rng.randint(-1, node - 1)) for node in new_nodes]

    def join(self, texts: list[list[int]]) -> None:
        """Rows join."""
        self.mirror.prefill(texts)
        self.taken += [0] * len(texts)

    def take(self, paths: Sequence[Sequence[int]] = (), nodes: Sequence[list[Node]] = ()) -> None:
        """Take all features, and compare them; `paths` of `nodes` were just committed."""
        texts, features = self.mirror.texts, self.mirror.backend.take_features()
        assert len(features) == len(texts), (
            f"There are {len(features)} tensors of features for {len(texts)} rows."
        )
        for row, (text, states) in enumerate(zip(texts, features, strict=True)):
            new = len(text) - self.taken[row]
            if self.last is not None:
                new = min(new, self.last)
            if len(states) != new:
                asked = "" if self.last is None else f" (last={self.last})"
                raise LawBroken(
                    f"Row {row} gives features of {len(states)} token(s){asked}, and should give {new}.",
                    likely=self._of_lengths(row, len(states), new),
                )
            self.taken[row] = len(text)
            path, old_nodes = (paths[row], nodes[row]) if paths else ((), [])
            if new:
                self._compare(row, states, text, path, old_nodes)

    def _of_lengths(self, row: int, count: int, new: int) -> str:
        if count < new and not self.taken[row]:
            return "the prompt's features are left out; keep the features of a prefill's passes too."
        if count < new:
            return "some commits are left out, or rows that were released did not take theirs along."
        if self.last is not None:
            return "`last` is ignored."
        return "they are given twice; take_features() must forget what it has given."

    def _compare(
        self, row: int, states: Tensor, text: list[int], path: Sequence[int], nodes: list[Node]
    ) -> None:
        expected = self._expected(text)[-len(states) :]
        assert states.shape == expected.shape, (
            f"Features have the shape {tuple(states.shape)}, and should have {tuple(expected.shape)}."
        )
        off = [_off(actual, right) for actual, right in zip(states, expected, strict=True)]
        position = next(
            (position for position, error in enumerate(off) if error > self.mirror.tolerance), None
        )
        if position is None:
            return
        from_end = len(states) - position
        raise LawBroken(
            f"The features {self.layers} of token {len(text) - from_end} of row {row} are off by "
            f"{off[position]:.2e} of their size.",
            error=off[position],
            likely=self._why(states[position], text, path, nodes, from_end),
        )

    def _why(
        self, states: Tensor, text: list[int], path: Sequence[int], nodes: list[Node], from_end: int
    ) -> str:
        """The mistake that wrong features look like: another order of layers, or another node."""
        read = text[: len(text) - from_end + 1]
        for other in permutations(self.layers):
            if _off(states, self._expected(read, other)[-1]) <= self.mirror.tolerance:
                return f"the layers are in the order {list(other)}, and {self.layers} was asked for."
        if from_end > len(path):
            return ""
        before = text[: len(text) - len(path)]
        for node in range(len(nodes)):
            tokens = [nodes[index][0] for index in path_to(nodes, node)]
            if _off(states, self._expected(before + tokens)[-1]) <= self.mirror.tolerance:
                return f"they belong to node {node}, and node {path[-from_end]} was accepted."
        return ""

    def _expected(self, text: list[int], layers: Sequence[int] = ()) -> Tensor:
        if self.oracle is None:
            raise InvalidInput(
                f"{type(self.mirror.backend).__name__} gives features, but names no model to compare them "
                "with; set its attribute `model` to a torch module, or to what has features(tokens, layers)."
            )
        states = self.oracle(text, layers or self.layers)
        return states if self.last is None else twice(states)


def _off(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest number where that is above 1."""
    actual, expected = actual.double().cpu(), expected.double().cpu()
    off = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))
    return off if off == off else float("inf")
