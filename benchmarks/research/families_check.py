"""The check of one family of models: the backend that `load` takes, law S, and greedy text.

The truth for a row is transformers' own `generate()` of only that row: its tokens, and for the nodes of a
tree the logits that it gives where it is made to write a node's path.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import LogitsProcessor

from benchmarks.research.families_models import build
from draftwood import SpeculativeDecoder, StateBackend, load
from draftwood.backends.structure.forward import plain_logits
from draftwood.base.errors import DraftwoodError
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy

LENGTHS, NEW = (45, 3, 21), 28
"""Tokens of the prompts, and how many are written after each: short of every window, and beyond."""

NEAR, FAR = 8, 32
"""Where windows, chunks, scales and switches are put: within what `load` reads of the model, and beyond."""

TOLERANCE = 2e-3
"""How far a node's logits may be off, by root mean square over their spread; what is wrong is off by more."""


@attrs.frozen
class Finding:
    """One line of the table.

    Attributes:
        family: transformers' `model_type`.
        model: the class; empty where it could not be built.
        result: "served", "refused", "differs", "not built", "no text alone" or "encoder-decoder".
        backend: the class that `load` took.
        law_s: the largest difference of a node's logits, over their spread.
        one: rows of one whose greedy text is that of `generate()`, of three.
        three: the same of three rows at once.
        reason: of a refusal or of what is not built.
        seconds: that it took.
    """

    family: str
    model: str = ""
    result: str = ""
    backend: str = ""
    law_s: float | None = None
    one: int | None = None
    three: int | None = None
    reason: str = ""
    seconds: float = 0.0


class Written(LogitsProcessor):
    """Lets `generate` write these tokens."""

    def __init__(self, tokens: Sequence[int], prompt: int) -> None:
        self.tokens, self.prompt = tokens, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = input_ids.shape[1] - self.prompt
        only = torch.full_like(scores, -1e9)
        only[:, self.tokens[min(position, len(self.tokens) - 1)]] = 0.0
        return only


def logits_along(model: Any, prompt: Sequence[int], path: Sequence[int]) -> Tensor:
    """`generate`'s own logits `[len(path) + 1, vocab]` after `prompt` and after every token of `path`."""
    out = model.generate(
        torch.tensor([list(prompt)]),
        do_sample=False,
        max_new_tokens=len(path) + 1,
        eos_token_id=None,
        pad_token_id=0,
        logits_processor=[Written([*path, 0], len(prompt))],
        output_logits=True,
        return_dict_in_generate=True,
    )
    if out.sequences[0, len(prompt) :].tolist()[: len(path)] != list(path):
        # A `generate` of a family's own may leave out what it is given.
        return plain_logits(model, [*prompt, *path])[len(prompt) - 1 :]
    return torch.cat(out.logits)


def text_of(model: Any, prompt: Sequence[int]) -> list[int]:
    """Returns the greedy text of `generate` after `prompt`."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=0)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


class Known(StateBackend):
    """A draft that knows what the target will write, and is wrong at every third token or puts it second."""

    max_length, weight_bytes = None, 0

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int) -> None:
        self.texts, self.vocab_size = [list(text) for text in texts], vocab
        self.rows: list[list[int]] = []
        self.nodes: list[list[list[int]]] = []

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.rows]

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.rows += [row.tolist() for row in rows]
        self.nodes += [[] for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        kept = [row for row in range(len(self.rows)) if rows is not None and row not in rows]
        self.rows, self.nodes = [self.rows[row] for row in kept], [self.nodes[row] for row in kept]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        for row, nodes in enumerate(self.nodes):
            for node in range(tokens.shape[1] if counts is None else counts[row]):
                parent = int(parents[row, node])
                nodes.append([*(nodes[parent] if parent >= 0 else []), int(tokens[row, node])])
                logits[row, node] = self._after(self.rows[row] + nodes[-1])
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            self.rows[row] += self.nodes[row][path[-1]] if path else []
            self.nodes[row] = []

    def _after(self, text: list[int]) -> Tensor:
        count, logits = len(text), torch.zeros(self.vocab_size)
        logits[(7 * count + sum(text)) % self.vocab_size] = 4.0
        known = next((t for t in self.texts if t[:count] == text and len(t) > count), None)
        if known is not None:
            logits[known[count]] = (5.0, 3.0, 0.0)[count % 3]
        return logits


def rows_equal(backend: Any, prompts: Sequence[list[int]], expected: Sequence[list[int]]) -> int:
    """Returns how many of these rows, decoded at once, are as expected."""
    texts = [prompt + text for prompt, text in zip(prompts, expected, strict=True)]
    drafter = ModelDrafter(Known(texts, backend.vocab_size))
    decoder = SpeculativeDecoder(backend, drafter, FixedTree(3, 2, 10, 0.0, "top-k"), Greedy())
    out: Any = decoder.generate(prompts, max_new_tokens=NEW, eos_token_id=[], return_dict_in_generate=True)
    return sum(written == text for written, text in zip(out.tokens, expected, strict=True))


def worst_node(
    model: Any, prompts: Sequence[list[int]], *, rounds: int = 2, backend: StateBackend | None = None
) -> float:
    """The largest difference of a node's logits, over their spread, in rounds of random trees.

    Args:
        model: whose `generate()` is the truth.
        prompts: of the rows.
        rounds: of trees.
        backend: over the model, without rows; default: what `load` gives.
    """
    backend, chance = load(model) if backend is None else backend, random.Random(1)
    backend.prefill([torch.tensor(prompt[:-1]) for prompt in prompts])
    # A row's tokens beyond its prompt, and its next root.
    texts: list[list[int]] = [[] for _ in prompts]
    roots, worst = [prompt[-1] for prompt in prompts], 0.0
    for _ in range(rounds):
        trees = [random_tree(chance, root) for root in roots]
        logits = backend.extend(
            torch.tensor([tokens for tokens, _ in trees]), torch.tensor([parents for _, parents in trees])
        )
        paths = []
        for row, (tokens, parents) in enumerate(trees):
            leaves = [node for node in range(len(tokens)) if node not in parents]
            for leaf in leaves[-3:]:
                path = path_to(parents, leaf)
                along = logits_along(model, prompts[row], texts[row] + [tokens[node] for node in path[1:]])
                worst = max(worst, difference(logits[row, path], along[len(texts[row]) :]))
            paths.append(path_to(parents, chance.choice(leaves))[: chance.randint(1, 5)])
            roots[row] = chance.randrange(5, 60)
            texts[row] += [tokens[node] for node in paths[-1][1:]] + [roots[row]]
        backend.commit(paths)
    backend.release()
    return worst


def check(family: str, engine: Any = "eager") -> Finding:
    """Returns the result for `family`, with every window and switch at `NEAR` tokens and then at `FAR`.

    Over OpenVINO, for which every model is converted, at `NEAR` only.
    """
    start, worst = time.perf_counter(), None
    for reach in (NEAR, FAR) if engine == "eager" else (NEAR,):
        finding = _check(family, reach, engine)
        if worst is None or (worst.result == "served" and finding.result != "served"):
            worst = finding
        elif finding.result == "served" and finding.law_s is not None:
            worst = attrs.evolve(
                worst, law_s=max(worst.law_s or 0.0, finding.law_s), backend=_both(worst, finding)
            )
        if worst.result != "served":
            break
    assert worst is not None
    return attrs.evolve(worst, seconds=time.perf_counter() - start)


def _both(one: Finding, other: Finding) -> str:
    return one.backend if one.backend == other.backend else f"{one.backend}, {other.backend}"


def _check(family: str, reach: int, engine: Any) -> Finding:
    try:
        model = build(family, reach=reach)
    except Exception as error:
        return Finding(family, result="not built", reason=_said(error))
    finding = Finding(family, type(model).__name__)
    if model.config.is_encoder_decoder:
        return attrs.evolve(finding, result="encoder-decoder")
    prompts = [[5 + (11 * i * i + 7 * i + 3 * n) % 55 for i in range(n)] for n in LENGTHS]
    try:
        truth = [text_of(model, prompt) for prompt in prompts]
    except Exception as error:
        finding = attrs.evolve(finding, result="no text alone", reason=_said(error))
        return _refused_as_due(finding, model)
    try:
        backend = load(model, engine=engine)
    except DraftwoodError as error:
        return attrs.evolve(finding, result="refused", reason=str(error))
    except Exception as error:
        return attrs.evolve(finding, result="differs", reason=f"load raises {_said(error)}")
    finding = attrs.evolve(finding, backend=type(backend).__name__)
    steps: list[Callable[[], dict[str, Any]]] = [
        lambda: {"law_s": worst_node(model, prompts, backend=backend)},
        lambda: {"one": sum(rows_equal(backend, [p], [t]) for p, t in zip(prompts, truth, strict=True))},
        lambda: {"three": rows_equal(backend, prompts, truth)},
    ]
    for step in steps:
        try:
            finding = attrs.evolve(finding, **step())
        except Exception as error:
            said = str(error) if isinstance(error, DraftwoodError) else f"raises {_said(error)}"
            finding = attrs.evolve(finding, reason=said)
            backend = load(model, engine=engine)
    right = (
        finding.law_s is not None
        and finding.law_s <= TOLERANCE
        and finding.one == finding.three == len(LENGTHS)
    )
    return attrs.evolve(finding, result="served" if right else "differs")


def _refused_as_due(finding: Finding, model: Any) -> Finding:
    """Returns the finding of a model that transformers cannot write text with, which `load` must refuse."""
    try:
        load(model)
    except DraftwoodError as error:
        return attrs.evolve(finding, reason=str(error))
    except Exception as error:
        return attrs.evolve(finding, result="differs", reason=f"load raises {_said(error)}")
    return attrs.evolve(finding, reason=f"{finding.reason} (load does not refuse it)".strip())


def random_tree(chance: random.Random, root: int) -> tuple[list[int], list[int]]:
    """Tokens and parents: a root, siblings, and a chain far after them."""
    parents = [-1, 0, 0, 0, *[chance.choice([1, 2, 3]) for _ in range(2)]]
    parents += [0, 6, 7, 8]
    return [root, *[chance.randrange(5, 60) for _ in parents[1:]]], parents


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def difference(logits: Tensor, expected: Tensor) -> float:
    off = (logits.float() - expected.float()).square().mean(-1).sqrt()
    worst = float((off / expected.float().std(-1).clamp(min=1e-9)).max())
    return worst if worst == worst else float("inf")


def _said(error: Exception) -> str:
    said = " ".join(str(error).split())[:160].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
