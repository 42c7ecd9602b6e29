"""A draft that learns from the texts its target has just written, on tiny models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from draftwood import InvalidInput, custom_generate
from draftwood.policies import Chain
from draftwood.verifiers import RecursiveRejection
from draftwood.zoo.distil.online import OnlineDistillation
from draftwood.zoo.distil.training import TrainingOptions, text_loss
from tests.zoo.test_distil import tiny

PROMPTS = torch.tensor([[0, 0, 3, 1], [5, 2, 7, 1], [0, 4, 4, 9]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
SAMPLED: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "top_k": 0, "pad_token_id": 0}


def loop(draft: Any, **options: Any) -> Any:
    return custom_generate(drafter=draft, policy=Chain(3), verifier=RecursiveRejection(), **options)


def written(target: Any, draft: Any, calls: int, **options: Any) -> list[float]:
    """Calls with a learner; returns the tokens a round of each."""
    torch.manual_seed(0)
    learner = OnlineDistillation(draft=draft, **options)
    speculative = loop(draft, learner=learner)
    called = SAMPLED | {"custom_generate": speculative, "return_dict_in_generate": True}
    outputs = [target.generate(PROMPTS, attention_mask=MASK, **called) for _ in range(calls)]
    return [output.statistics.tokens_per_round for output in outputs]


def test_the_draft_comes_to_guess_what_the_target_writes() -> None:
    target, draft = tiny(0, width=32), tiny(1)
    rounds = written(target, draft, 60, learning_rate=3e-3, steps=4)
    assert sum(rounds[-10:]) > 1.25 * sum(rounds[:10]), rounds
    assert not target.training
    assert all(weight.grad is None for model in (target, draft) for weight in model.parameters())


def test_greedy_texts_are_those_of_generate_while_it_learns() -> None:
    target, draft = tiny(0, width=32), tiny(1)
    learner = OnlineDistillation(draft=draft, learning_rate=1e-2)
    speculative, before = loop(draft, learner=learner), copy.deepcopy(draft)
    greedy = SAMPLED | {"do_sample": False, "attention_mask": MASK}
    for _ in range(3):
        expected = target.generate(PROMPTS, **greedy)
        assert torch.equal(target.generate(PROMPTS, **greedy, custom_generate=speculative), expected)
    assert learner.taken == 3
    assert not torch.equal(draft.lm_head.weight, before.lm_head.weight)


@torch.no_grad()
def test_the_learner_is_told_prompts_and_texts_without_padding() -> None:
    told: list[Any] = []
    target = tiny(0, width=32, end=6)
    ids = target.generate(
        PROMPTS,
        attention_mask=MASK,
        **SAMPLED | {"do_sample": False, "max_new_tokens": 40},
        custom_generate=loop(tiny(1), learner=lambda *call: told.append(call)),
    )
    ((model, prompts, texts),) = told
    assert model is target
    assert [list(prompt) for prompt in prompts] == [[3, 1], [5, 2, 7, 1], [4, 4, 9]]
    assert [row[: len(text)] for row, text in zip(ids[:, 4:].tolist(), texts, strict=True)] == texts
    assert all(6 not in text[:-1] for text in texts)


def test_padding_teaches_nothing() -> None:
    """The loss of rows of several lengths is the mean over their new tokens, each row by itself."""
    target, draft = tiny(0, width=32), tiny(1)
    prompts, texts = [[1, 2, 3], [4]], [[5, 6], [7, 8, 9, 10, 11]]
    learner = OnlineDistillation(draft=draft)
    learner(target, prompts, texts)
    total = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = torch.tensor([[*prompt, *text]])
        places = torch.arange(len(prompt) - 1, tokens.shape[1] - 1)
        loss = text_loss(
            target,
            tiny(1),
            tokens,
            places,
            weights=torch.ones(1, len(places)),
            real=len(places),
            options=TrainingOptions(temperatures=(1.0,)),
        )
        total += float(loss.detach()) * len(text)
    assert learner.loss == pytest.approx(total / 7, rel=1e-5)


def test_a_draft_in_half_precision_keeps_what_small_steps_add_up_to() -> None:
    target, draft = tiny(0, width=32), tiny(1).bfloat16()
    before = draft.model.norm.weight.clone()
    learner = OnlineDistillation(draft=draft, learning_rate=2e-4)  # below half a step of bfloat16 at 1
    for _ in range(30):
        learner(target, [[1, 2, 3]], [[4, 5, 6, 7]])
    assert draft.dtype == torch.bfloat16
    assert not torch.equal(draft.model.norm.weight, before)


def test_it_learns_after_every_few_calls_from_all_of_them() -> None:
    target, draft = tiny(0, width=32), tiny(1)
    learner = OnlineDistillation(draft=draft, every=3, steps=2, batch=1)
    for call in range(1, 8):
        learner(target, [[1, 2]], [[3, call]])
        assert learner.taken == call // 3 * 2
    learner(target, [[1, 2]], [[]])  # nothing was written
    learner(target, [[1, 2]], [[]])
    assert learner.taken == 6


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match=r"draft is 'small/'; give the transformers model that drafts"):
        OnlineDistillation(draft="small/")
    with pytest.raises(InvalidInput, match=r"temperatures is \(0\.0,\); give one or more above 0"):
        OnlineDistillation(draft=tiny(1), temperatures=[0.0])  # type: ignore[list-item]
    target = tiny(0, width=32)
    embeds = target.get_input_embeddings()(PROMPTS)
    with pytest.raises(InvalidInput, match="learns from tokens"):
        target.generate(
            inputs_embeds=embeds, max_new_tokens=3, custom_generate=loop(tiny(1), learner=lambda *_: None)
        )
