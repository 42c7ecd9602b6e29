"""Verdict on a case: whether `generate()` of an untouched model and ours agree."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Sequence
from typing import Any

import attrs
import torch
import transformers as hf
from torch import Tensor

from draftwood import DraftwoodError, Generation, SpeculativeDecoder, StateBackend, load
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.recurrent_models import Doubled
from tests.cache_names import cache_name
from tests.configurations.case import Case
from tests.configurations.drawing import VOCAB, Draw

EQUAL, REFUSED, NOT_THERE = "equal", "refused in a sentence", "generate() raises"
WRONG, RAW, UNEXPECTED = "wrong", "a raw error", "refused without a cause"
FINE = (EQUAL, REFUSED, NOT_THERE)
REFUSALS = re.compile("an attention window of 1 token|MiniMaxForCausalLM is recurrent, but none of its parts")
"""What may be refused."""
CLOSE = 1e-3
"""Difference of two logits that nothing but rounding needs to explain."""
ROUNDING = 20.0
"""How many times what single precision does to the model itself ours may be off."""
POLICIES = (FixedTree(3, 2, law="top-k"), FixedTree(5, 1, law="top-k"), DySpec(7))


@attrs.frozen
class Verdict:
    """The result of a case, and the reason in words."""

    case: Case
    kind: str
    detail: str = ""


def verdict(case: Case) -> Verdict:
    """Returns what comes of `case`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            written = [generated(case.model(), prompt, case.new) for prompt in case.prompts]
        except Exception as error:
            return Verdict(case, NOT_THERE, f"{type(error).__name__}: {error}")
        try:
            return Verdict(case, *_judged(case, written))
        except DraftwoodError as error:
            return Verdict(case, REFUSED if REFUSALS.search(str(error)) else UNEXPECTED, str(error))
        except Exception as error:
            return Verdict(case, RAW, f"{type(error).__name__}: {error}")


def generated(model: Any, prompt: list[int], new: int) -> tuple[list[int], Tensor]:
    """Returns the tokens that the model's own `generate()` writes, and the logits `[new, vocab]` of each."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def _judged(case: Case, written: list[tuple[list[int], Tensor]]) -> tuple[str, str]:
    draw = Draw(f"strategy {case.number}")
    backend = load(case.model())
    drafter = ModelDrafter(load(case.model(noise=0.03)))
    decoder = SpeculativeDecoder(backend, drafter, draw.choice(POLICIES), RecursiveRejection())
    found = decoder.generate(
        case.prompts,
        max_new_tokens=case.new,
        eos_token_id=[],
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert isinstance(found, Generation)
    longest, detail = max(map(len, case.prompts)), ""
    for row, (prompt, (tokens, logits)) in enumerate(zip(case.prompts, written, strict=True)):
        ours = found.sequences[row, longest:].tolist()
        assert found.logits is not None
        theirs = torch.stack([step[row] for step in found.logits])
        same = next((i for i, pair in enumerate(zip(ours, tokens, strict=False)) if pair[0] != pair[1]), None)
        steps = case.new if same is None else same + 1
        if len(ours) != case.new:
            return WRONG, f"row {row} of {len(prompt)} tokens ends after {len(ours)} of {case.new}"
        if theirs.argmax(-1).tolist() != ours:
            return WRONG, f"row {row} of {len(prompt)} tokens is not what its own logits say"
        off = (theirs[:steps] - logits[:steps]).abs().amax(-1)
        if not float(off.max()) <= CLOSE:
            place = int((~(off <= CLOSE)).nonzero()[0])
            detail = f"row {row} of {len(prompt)} tokens is off by {float(off[place]):.1e} at {place}"
            if not _rounding(case, prompt, tokens, logits, off):
                return WRONG, detail
            detail = "further apart than usual, and no further than rounding explains"
    return _trees(case, backend, written, draw) or (EQUAL, detail)


def _rounding(case: Case, prompt: list[int], tokens: list[int], logits: Tensor, off: Tensor) -> bool:
    """Whether the differences `off` are as large as what single precision does to the model itself."""
    rounded = Rounding(case)
    itself = torch.tensor([rounded(prompt, tokens[:step], logits[step]) for step in range(len(off))])
    # A text that parts from the other does so where two tokens are nearly as likely.
    return bool((off <= ROUNDING * itself.cummax(0).values + CLOSE).all())


class Rounding:
    """The rounding of the logits of a case's own model in single precision.

    That is how far they are from those in double precision, and, as single results are right by luck, how far
    these move with weights that are off by a rounding.
    """

    def __init__(self, case: Case) -> None:
        self._exact, self._moved = (Steps(case.model(noise=noise).double()) for noise in (0.0, 2e-7))

    def __call__(self, prompt: list[int], path: list[int], logits: Tensor) -> float:
        """Returns the larger of both for the `logits` `[vocab]` after `prompt` and then `path`."""
        with Doubled():
            exact, moved = self._exact(prompt, path), self._moved(prompt, path)
        return max(float((one - exact).abs().max()) for one in (logits, moved))


class Steps:
    """Logits of `model` as `generate()` has them: after a prompt read at once, then token by token."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._after: dict[tuple[int, ...], tuple[Tensor, Any]] = {}

    def __call__(self, prompt: list[int], path: list[int]) -> Tensor:
        """Returns the logits `[vocab]` after `prompt` and then `path`."""
        if self.model.config.model_type == "recurrent_gemma":  # which keeps its states in itself
            with torch.no_grad():
                return self.model(torch.tensor([prompt + path]), use_cache=False).logits[0, -1]  # type: ignore[no-any-return]
        return self._step(tuple(prompt), tuple(path))[0]

    def after(self, prompt: list[int], path: list[int]) -> Any:
        """Returns a copy of the cache after `prompt` and then `path`."""
        return copy.deepcopy(self._step(tuple(prompt), tuple(path))[1])

    @torch.no_grad()
    def on(self, cache: Any, pieces: Sequence[Sequence[int]], *, start: int) -> Tensor:
        """Returns the logits `[pieces, vocab]` after each piece, which is read at once.

        Args:
            cache: of the text before the pieces; it is written to.
            pieces: the next tokens.
            start: length of the text before.
        """
        logits, options = [], {cache_name(self.model): cache}
        for piece in pieces:
            if self._takes_positions:
                options["position_ids"] = torch.arange(start, start + len(piece)).unsqueeze(0)
            out = self.model(torch.tensor([piece]), use_cache=True, **options)
            logits.append(out.logits[0, -1])
            start += len(piece)
        return torch.stack(logits)

    def _step(self, prompt: tuple[int, ...], path: tuple[int, ...]) -> tuple[Tensor, Any]:
        key = prompt + path
        if key not in self._after:
            if path:
                cache, piece = copy.deepcopy(self._step(prompt, path[:-1])[1]), path[-1:]
            else:
                cache, piece = hf.DynamicCache(config=self.model.config), prompt
            logits = self.on(cache, [piece], start=len(key) - len(piece))
            self._after[key] = logits[0], cache
        return self._after[key]


def _trees(
    case: Case, backend: StateBackend, written: list[tuple[list[int], Tensor]], draw: Draw
) -> tuple[str, str] | None:
    """Returns the fault of random trees after prompts whose last token is the first root."""
    oracle, rounded = Steps(case.model()), Rounding(case)
    backend.prefill([torch.tensor(prompt[:-1], dtype=torch.int64) for prompt in case.prompts])
    texts, roots = [prompt[:-1] for prompt in case.prompts], [prompt[-1] for prompt in case.prompts]
    for _ in range(2):
        nodes = draw.randint(1, 6)
        parents = [[-1, *(draw.randrange(node) for node in range(1, nodes))] for _ in texts]
        tokens = [[root, *(draw.randrange(VOCAB) for _ in range(1, nodes))] for root in roots]
        scored = backend.extend(torch.tensor(tokens), torch.tensor(parents))
        for row, prompt in enumerate(case.prompts):
            for node in range(nodes):
                path = [tokens[row][one] for one in _path(parents[row], node)]
                after = (texts[row] + path)[len(prompt) :]
                expected = oracle(prompt, after)
                off = float((scored[row, node] - expected).abs().max())
                if off <= CLOSE:
                    continue
                if not off <= ROUNDING * rounded(prompt, after, expected) + CLOSE:
                    place = f"node {node} of row {row}, {len(after)} tokens after {len(prompt)},"
                    return WRONG, f"{place} is off by {off:.1e}"
        paths = [_path(of_row, draw.randrange(nodes)) for of_row in parents]
        texts = [text + [tokens[row][one] for one in paths[row]] for row, text in enumerate(texts)]
        roots = [draw.randrange(VOCAB) for _ in roots]
        backend.commit(paths)
    backend.release()
    return None


def _path(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*_path(parents, parents[node]), node]
