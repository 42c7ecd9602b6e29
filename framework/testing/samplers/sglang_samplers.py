"""An adapter for SGLang's verification of chains and trees, by the signature that it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.laws.proposals import Deterministic
from draftwood.testing.samplers.sampler_cases import PROMPT, SamplerCase
from draftwood.testing.samplers.sampler_runs import Sampler
from draftwood.testing.samplers.signatures import matched, named, takes

_NAME = "SGLang's verification"

_WRITTEN = ("predicts", "accept_index", "accept_token_num", "candidates")


def sglang_sampler(
    verify: Callable[..., None],
    *,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    reads_draft: bool | None = None,
    seeded: bool = False,
    device: torch.device | str = "cpu",
) -> Sampler:
    """A sampler from one of SGLang's functions that verify drafts.

    These are `tree_speculative_sampling_target_only` of every version since February 2025, its Triton form,
    `chain_speculative_sampling_triton` (rejection sampling and block verification) and `verify_tree_greedy`.
    The function gets what its signature names, of `predicts` `[rows * (n + 1)]`, `accept_index`
    `[rows, depth + 1]` and `accept_token_num` `[rows]` (int32, written to); `candidates`, `retrive_index`,
    `retrive_next_token` (first child) and `retrive_next_sibling` `[rows, n + 1]` (int64, -1 for none; also
    spelled `retrieve_`); `uniform_samples` `[rows, n + 1]` and `uniform_samples_for_final_sampling` `[rows]`;
    `target_probs` `[rows, n + 1, vocab]`; `draft_probs`; `target_predict` `[rows, n + 1]` (the most likely
    tokens); and the options below. It takes one uniform more than there are nodes, root included:
    `prove_sampler(sglang_sampler(verify), parents=(0, 0, 1), uniforms=5, law=Deterministic)`; with
    `samples=N, batched=True` it judges rows together.

    The rules of trees accept siblings by the target's probabilities only, so any law without equal siblings
    will do; they get zeros for `draft_probs`. With thresholds below 1 they accept more than they may, and
    with `WithReplacement` equal siblings count twice.

    Args:
        verify: SGLang's function, or one with its signature.
        threshold_single: SGLang's `speculative_accept_threshold_single`.
        threshold_acc: SGLang's `speculative_accept_threshold_acc`.
        deterministic: passed on.
        reads_draft: whether the test reads `draft_probs`, as rejection sampling does for chains; then they
            are the draft's, `[rows, n, vocab]`. None: found out by four calls with one drafted token.
        seeded: give every row its own `sampling_seed` and `positions` instead of uniforms, where the function
            takes them; prove it with `samples`.
        device: where the function wants its tensors.

    Raises:
        InvalidInput: an option that the function does not take. At the first call, arguments that are not
            known here.
    """
    thresholds = {"threshold_single": threshold_single, "threshold_acc": threshold_acc}
    for name, value in thresholds.items():
        if value != 1 and not takes(verify, name, unread=True):
            raise InvalidInput(f"{name}={value:g} is given, and {_NAME} takes no {name}; leave it out.")
    if seeded and not takes(verify, "sampling_seed", unread=True):
        raise InvalidInput(f"seeded=True is given, and {_NAME} takes no sampling_seed; leave it out.")
    options = thresholds | {"deterministic": deterministic}
    calls = _Calls(verify, options, seeded=seeded, device=device)
    told = reads_draft

    def sampler(case: SamplerCase) -> Tensor:
        nonlocal told
        if told is None:
            told = calls.test_reads_the_draft()
        batch = case if case.draft_tokens.ndim == 2 else _row(case)
        if told:
            _check_drawn_chain(batch)
        n = batch.draft_tokens.shape[1]
        if not (seeded or calls.greedy) and batch.uniforms.shape[1] < n + 2:
            raise InvalidInput(
                f"{batch.uniforms.shape[1]} uniforms are too few for {n} drafted tokens; "
                f"give uniforms={n + 2}."
            )
        emitted, count = calls.verified(batch, draft=told)
        if case.draft_tokens.ndim == 1:
            return emitted[0, : int(count[0])]
        place = torch.arange(emitted.shape[1])
        vocab = case.target_probs.shape[-1]
        # A place that was never written, within what is accepted, is a fault; after it there is nothing.
        emitted = torch.where(emitted < 0, vocab, emitted)
        return emitted.masked_fill(place >= count.unsqueeze(1), -1)

    return named(sampler, _NAME)


@attrs.frozen(eq=False)
class _Calls:
    """SGLang's function with the options of all calls.

    Attributes:
        verify: the function.
        options: thresholds and `deterministic`.
        seeded: whether rows have seeds instead of uniforms.
        device: of the function's tensors.
        greedy: whether the function takes the target's most likely tokens instead of probabilities.
    """

    verify: Callable[..., None]
    options: dict[str, Any]
    seeded: bool = attrs.field(kw_only=True)
    device: torch.device | str = attrs.field(kw_only=True)
    greedy: bool = attrs.field(init=False)

    @greedy.default
    def _greedy(self) -> bool:
        return takes(self.verify, "target_predict")

    def verified(self, batch: SamplerCase, *, draft: bool) -> tuple[Tensor, Tensor]:
        """Returns emitted tokens `[rows, depth + 1]`, and how many of them are each row's `[rows]`."""
        try:
            return self._verified(batch, draft=draft)
        except InvalidInput:
            raise
        except Exception as error:
            single = _in_float32(batch)
            if batch.target_probs.dtype != torch.float32 and self._runs(single, draft=draft):
                what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise InvalidInput(
                    f"{_NAME} fails on probabilities of {batch.target_probs.dtype} ({what}) and not on "
                    "float32; give dtype=torch.float32."
                ) from error
            raise

    def test_reads_the_draft(self) -> bool:
        """Returns whether another distribution of the draft changes which coins accept a token."""
        if self.greedy or self.seeded:
            return self.seeded  # SGLang's rejection sampling is its only rule with seeds
        for rows in (2, 1):  # of draft_probs: as many as nodes, or as drafted tokens
            try:
                none, all_ = (
                    [self._accepts(coin=coin, probability=q, rows=rows) for coin in (0.25, 0.75)]
                    for q in (0.0, 1.0)
                )
            except InvalidInput:
                raise
            except Exception:  # what fails in every form fails in the proof, which shows where
                continue
            return none != all_
        return False

    def _accepts(self, *, coin: float, probability: float, rows: int) -> bool:
        """Returns whether a token of probability 0.5 is accepted, the draft's probability being this."""
        case = SamplerCase(
            draft_tokens=torch.tensor([[0]]),
            parents=torch.tensor([0]),
            target_probs=torch.tensor([[[0.5, 0.5, 0.0, 0.0]]]).repeat(1, 2, 1),
            draft_probs=torch.tensor([[[probability, 0.0, 0.0, 0.0]]]).repeat(1, rows, 1),
            law=Deterministic,
            uniforms=torch.tensor([[coin, 0.5, 0.5]]),
        )
        return int(self._verified(case, draft=True)[1][0]) == 2

    def _runs(self, batch: SamplerCase, *, draft: bool) -> bool:
        try:
            self._verified(batch, draft=draft)
        except Exception:
            return False
        return True

    def _verified(self, batch: SamplerCase, *, draft: bool) -> tuple[Tensor, Tensor]:
        (rows, n), device = batch.draft_tokens.shape, self.device
        first, sibling, depth = _links(batch)
        predicts = torch.full((rows * (n + 1),), -1, dtype=torch.int32, device=device)
        accept_index = torch.full((rows, depth + 1), -1, dtype=torch.int32, device=device)
        accept_token_num = torch.zeros(rows, dtype=torch.int32, device=device)
        root = torch.full((rows, 1), PROMPT[-1])
        target = batch.target_probs.contiguous().to(device)
        uniforms = batch.uniforms.contiguous().to(device)
        given: dict[str, Any] = {
            "predicts": predicts,
            "accept_index": accept_index,
            "accept_token_num": accept_token_num,
            "candidates": torch.cat([root, batch.draft_tokens], 1).to(device),
            "retrive_index": torch.arange(rows * (n + 1), device=device).reshape(rows, n + 1),
            "retrive_next_token": torch.tensor(first, device=device).repeat(rows, 1),
            "retrive_next_sibling": torch.tensor(sibling, device=device).repeat(rows, 1),
            "uniform_samples": None if self.seeded else uniforms[:, : n + 1].contiguous(),
            "uniform_samples_for_final_sampling": None if self.seeded else uniforms[:, -1:].flatten(),
            "target_probs": target,
            "draft_probs": batch.draft_probs.contiguous().to(device) if draft else torch.zeros_like(target),
            **self.options,
        }
        needed = (*_WRITTEN, "target_probs")
        if self.greedy:
            given["target_predict"] = target.argmax(-1)
            needed = (*_WRITTEN, "target_predict")
        if self.seeded:
            given["sampling_seed"] = torch.randint(2**62, (rows,)).to(device)
            given["positions"] = torch.randint(10_000, (rows, 1)).add(torch.arange(n + 1)).to(device)
        args, by_name = matched(self.verify, given, needed=needed, name=_NAME)
        self.verify(*args, **by_name)
        accepted = accept_index.long()
        # A row's path has one place more than it has accepted tokens; the others hold no node.
        tokens = predicts[accepted.clamp(min=0)].masked_fill(accepted < 0, -1)
        return tokens.long().cpu(), accept_token_num.long().cpu() + 1


def _links(case: SamplerCase) -> tuple[list[int], list[int], int]:
    """Returns every node's first child and next sibling (-1: none), root included, and the tree's depth."""
    n = case.draft_tokens.shape[1]
    first, sibling, depth = [-1] * (n + 1), [-1] * (n + 1), [0] * (n + 1)
    for row in range(n + 1):
        nodes = [index + 1 for index in case.children(row)]
        for node, later in zip(nodes, [*nodes[1:], -1], strict=False):
            sibling[node], depth[node] = later, depth[row] + 1
        first[row] = nodes[0] if nodes else -1
    return first, sibling, max(depth)


def _row(case: SamplerCase) -> SamplerCase:
    """Returns the case as a batch of one row."""
    fields = ("draft_tokens", "target_probs", "draft_probs", "uniforms", "target_logits")
    return attrs.evolve(case, **{one: getattr(case, one).unsqueeze(0) for one in fields})


def _in_float32(case: SamplerCase) -> SamplerCase:
    fields = ("target_probs", "draft_probs", "uniforms", "target_logits")
    return attrs.evolve(case, **{one: getattr(case, one).float() for one in fields})


def _check_drawn_chain(case: SamplerCase) -> None:
    if case.law is Deterministic:
        raise InvalidInput(
            f"{_NAME} tests by the draft's probabilities, and law=Deterministic draws none; give "
            "law=WithReplacement."
        )
    if case.parents.tolist() != list(range(len(case.parents))):
        raise InvalidInput(
            f"{_NAME} tests by the draft's probabilities, as SGLang does for chains only; give "
            f"parents={tuple(range(len(case.parents)))}."
        )
