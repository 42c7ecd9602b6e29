"""Mamba-2 with limits of its steps, compared with transformers' own `generate()` of the unchanged model.

transformers clamps the steps of all tokens that it reads at once, and of none that it reads one by one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood import Generation, SpeculativeDecoder, load
from draftwood.decoding.round_records import TokenDetails
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.greedy import Greedy
from tests.backends.captured_models import as_traced, few_shapes
from tests.backends.recurrent_models import RECURRENT, VOCAB, build
from tests.cache_names import cache_name
from tests.configurations.compare import Steps, generated

UPPER = ("mamba2", "bamba", "granitemoehybrid", "falcon_h1")
"""Families whose configuration names a limit; by default it is open."""
FLOOR = ("nemotron_h", "zamba2")
"""Families that clamp from below, by default too."""
PROMPTS = [[3, 9, 4, 9, 4, 11], [5], list(range(1, 20)), [7, 8]]
NEW = 8


def limited(name: str) -> Any:
    """A model whose steps are beyond its limits about half of the time."""
    config = RECURRENT[name]()
    if name in UPPER:
        config.time_step_limit = (0.0, 0.6)
    if name == "zamba2":
        config.time_step_min = 0.5  # the default of 0.001 is below the rounding of its logits
    model = build(name, config=config)
    if name == "nemotron_h":
        for parameter_name, parameter in model.named_parameters():
            if "dt_bias" in parameter_name:
                parameter.data.sub_(7.0)  # whose steps are about 0.001, the default floor
    model.generation_config.eos_token_id = None
    return model


def decoder_of(model: Any, **options: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        load(model, **options), PromptLookup(vocab_size=VOCAB), Chain(3, "top-k"), Greedy()
    )


@pytest.mark.parametrize("name", [*UPPER, *FLOOR])
def test_texts_and_logits_are_those_of_generate(name: str) -> None:
    expected = [generated(limited(name), prompt, NEW) for prompt in PROMPTS]
    found = decoder_of(limited(name)).generate(
        PROMPTS, max_new_tokens=NEW, eos_token_id=[], output_logits=True, return_dict_in_generate=True
    )
    assert isinstance(found, Generation)
    assert found.logits is not None
    for row, (tokens, logits) in enumerate(expected):
        assert found.tokens[row] == tokens
        torch.testing.assert_close(
            torch.stack([step[row] for step in found.logits]), logits, atol=1e-4, rtol=0
        )
    # A backend that clamps every step, or none, would be seen.
    steps = Steps(limited(name))
    for row in (0, 2):
        prompt, (tokens, logits) = PROMPTS[row], expected[row]
        at_once, one_by_one = steps(prompt + tokens[:4], []), steps(prompt[:1], prompt[1:] + tokens[:4])
        assert (at_once - logits[4]).abs().max() > 1e-3
        assert (one_by_one - logits[4]).abs().max() > 1e-3


def read(session: Any, row: int) -> Tensor:
    """Logits `[tokens, vocab]` of what a session writes in a row until its text ends."""
    logits = []
    while True:
        for record in session.run().rows:
            if record.row == row:
                logits.append(record.logits)
                if record.finished:
                    return torch.cat(logits)


@pytest.mark.parametrize(
    ("name", "capture"),
    [
        *((name, "off") for name in (*UPPER, *FLOOR)),
        pytest.param("mamba2", "compile", id="mamba2-captured", marks=pytest.mark.thorough),  # traces
    ],
)
def test_a_kept_rows_next_turn_is_read_as_a_prompt(
    name: str, capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwood.backends.passes.capture._inductor", lambda *_, **__: as_traced)
    turn = [(5 * i + 2) % VOCAB for i in range(70)]
    steps = Steps(limited(name))
    one = decoder_of(limited(name), capture=capture)
    details = TokenDetails(logits=True)
    with few_shapes(), one.session(max_new_tokens=4, eos_token_id=[], keep=details) as session:
        row = session.add(PROMPTS[0], kept=True)
        session.add(PROMPTS[1], max_new_tokens=40)
        read(session, row)
        first = session.text(row)
        session.extend(row, turn)
        found = read(session, row)
        text = session.text(row)
    assert text[: len(first) + len(turn)] == first + turn
    # transformers reads the last token that it wrote and the next turn at once.
    cache_of, start = steps.after(PROMPTS[0], first[len(PROMPTS[0]) : -1]), len(first) - 1
    pieces = [text[start : len(first) + len(turn)], *([token] for token in text[len(first) + len(turn) : -1])]
    expected = steps.on(cache_of, pieces, start=start)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    if name != "mamba2":  # whose own generate() takes no filled cache with several tokens
        assert_generate_agrees(limited(name), first, turn, found, start=len(PROMPTS[0]))


def assert_generate_agrees(
    model: Any, first: list[int], turn: list[int], found: Tensor, *, start: int
) -> None:
    """`generate()` with the cache of its first turn has the logits `found` in its second."""
    ids = torch.tensor([first[:start]])
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, **options)
    assert out.sequences[0].tolist() == first
    more = torch.tensor([first + turn])
    again = model.generate(
        more,
        attention_mask=torch.ones_like(more),
        max_new_tokens=4,
        output_logits=True,
        **{cache_name(model): out[cache_name(model)]},
        **options,
    )
    torch.testing.assert_close(found, torch.cat(again.logits), atol=1e-4, rtol=0)
