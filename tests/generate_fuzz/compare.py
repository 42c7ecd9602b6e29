"""The results of a call both ways, and whether they agree."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import redirect_stderr
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers.utils import logging

from draftwood import DraftwoodError, SamplingParams, SpeculativeDecoder, custom_generate
from draftwood.integrations.generate_options import limits
from draftwood.integrations.inner_outputs import FLAGS
from draftwood.strategies.drafters.model import ModelDrafter
from tests.generate_fuzz.calls import Call, call
from tests.generate_fuzz.models import STRATEGIES, draft, model
from tests.generate_fuzz.processors import FavoursByRow, OnACopy

EQUAL, REFUSED, BOTH_RAISE = "equal", "refused in a sentence", "both raise"
FINE = (EQUAL, REFUSED, BOTH_RAISE)
TIE = 1e-4  # logits closer than this may part by rounding

REFUSALS: dict[str, set[str]] = {
    "^position_ids differs from the number": {"positions"},
    "^A streamer shows one row": {"streamed"},
    "^The processor Counts .* which a tree of drafts cannot follow": {"counting_processor"},
    "^The processor UnbatchedClassifierFreeGuidance.* cannot follow": {"guidance"},
    "^The processor SynthID.* cannot follow": {"synthid"},
    "^custom_generate= decodes by draft trees, and .* asks? for another decoding method": {
        "assistant",
        "beams",
        "contrastive",
        "dola",
        "forced_words",
        "mtp",
        "prompt_lookup",
    },
    "^Embeddings .inputs_embeds. were given": {"embeddings"},
    "^use_cache=False and .* reads tokens twice": {"given_cache"},
    "^past_key_values (holds|has read padding)|^Layer .* of past_key_values": {"given_cache"},
    "reads no cache of another call|so past_key_values is not read": {"given_cache"},
    "^output_(attentions|hidden_states)=True (is not supported|gives the steps)": {"inner_outputs"},
    "^cache_implementation='quantized' would change the text": {"other_cache"},
    "^token_healing=True changes the prompt": {"token_healing"},
}
"""What may be refused, and the features of a call that one of which must be in it."""


@attrs.frozen(eq=False)
class Came:
    """The result of a call: an output, or an error."""

    output: Any = None
    error: Exception | None = None
    streamed: tuple[Any, ...] | None = None
    ends: int = 0

    @property
    def sequences(self) -> Tensor:
        return self.output if isinstance(self.output, Tensor) else self.output.sequences  # type: ignore[no-any-return]


@attrs.frozen(eq=False)
class Verdict:
    kind: str
    detail: str = ""


@cache
def speculative(kind: str, strategy: int) -> Any:
    policy, verifier = STRATEGIES[strategy]
    return custom_generate(drafter=ModelDrafter(draft()), policy=policy, verifier=verifier)


@cache
def speculative_decoder(kind: str, strategy: int) -> SpeculativeDecoder:
    policy, verifier = STRATEGIES[strategy]
    return SpeculativeDecoder(model(kind), ModelDrafter(draft()), policy, verifier)


def came_of(one: Call, *, ours: bool) -> Came:
    target = model(one.kind)
    options = dict(one.options)
    without_eos = options.pop("_without_eos", False)
    kept = target.generation_config.eos_token_id
    if without_eos:
        target.generation_config.eos_token_id = None
    if ours:
        options["custom_generate"] = speculative(one.kind, one.strategy)
    elif options.get("output_logits") and "logits_processor" in options:
        # generate() hands a processor the very tensor that it calls the model's logits.
        options["logits_processor"] = [
            OnACopy(own) if isinstance(own, FavoursByRow) else own for own in options["logits_processor"]
        ]
    streamer = options.get("streamer")
    output, error = None, None
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            output = target.generate(**options)
    except Exception as raised:
        error = raised
    finally:
        target.generation_config.eos_token_id = kept
    if streamer is None:
        return Came(output, error)
    return Came(output, error, (streamer.prompt, streamer.tokens), streamer.ends)


def verdict(number: int) -> tuple[Call, Verdict]:
    """Call `number` both ways."""
    plain, ours = came_of(call(number), ours=False), came_of(call(number), ours=True)
    return call(number), _verdict(call(number), plain, ours)


def run(number: int) -> tuple[int, str, str, str]:
    """The call, what came of it and why, in plain words, so that a process can hand it on."""
    return _told(number, verdict(number))


def run_directly(number: int) -> tuple[int, str, str, str] | None:
    """Runs the call by `SpeculativeDecoder.generate`, where that takes it."""
    found = directly(number)
    return None if found is None else _told(number, found)


def _told(number: int, found: tuple[Call, Verdict]) -> tuple[int, str, str, str]:
    one, said = found
    return number, said.kind, said.detail, str(one)


def quiet() -> None:
    """One thread, and no warnings of transformers, which random options call for."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()


def directly(number: int) -> tuple[Call, Verdict] | None:
    """Call `number` by `SpeculativeDecoder.generate`; None where that does not take the same arguments."""
    one = call(number)
    if len(one.options["input_ids"]) > 1 or "_without_eos" in one.options:
        return None
    prepared: dict[str, Any] = {}

    def loop(model: Any, input_ids: Tensor, **given: Any) -> Tensor:
        prepared.update(given, input_ids=input_ids)
        return input_ids

    plain = came_of(one, ours=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(one.kind).generate(**call(number).options, custom_generate=loop)
    except Exception:
        return None
    mask = prepared.get("attention_mask")
    unserved = set(one.names) & (set().union(*REFUSALS.values()) | {"stop_strings", "several_returned"})
    if plain.error is not None or unserved or len(prepared["input_ids"]) > 1 or mask is not None:
        return None
    asked, longest, ends = limits(prepared["stopping_criteria"])
    assert longest is not None
    output, error = None, None
    try:
        output = speculative_decoder(one.kind, one.strategy).generate(
            prepared["input_ids"],
            max_new_tokens=max(longest - prepared["input_ids"].shape[1], 1),
            sampling=SamplingParams(
                1.0 if one.options["do_sample"] else 0.0, processors=prepared["logits_processor"]
            ),
            eos_token_id=sorted(ends),
            stopping_criteria=asked,
            output_scores=bool(one.options.get("output_scores")),
            output_logits=bool(one.options.get("output_logits")),
            return_dict_in_generate=bool(one.options.get("return_dict_in_generate")),
        )
    except Exception as raised:
        error = raised
    alone = attrs.evolve(one, options=one.options | {"streamer": None})
    return one, _verdict(alone, plain, Came(output, error))


def _verdict(one: Call, plain: Came, ours: Came) -> Verdict:
    if ours.error is not None:
        said = f"{type(ours.error).__name__}: {ours.error}"
        if isinstance(ours.error, DraftwoodError):
            if ours.streamed is not None and not ours.ends:
                return Verdict("a streamer that never ends", said)
            if plain.error is not None:
                return Verdict(BOTH_RAISE, said)
            causes = [names for sentence, names in REFUSALS.items() if re.search(sentence, str(ours.error))]
            expected = any(names & set(one.names) for names in causes)
            return Verdict(REFUSED if expected else "refused without a cause", said)
        return Verdict(BOTH_RAISE if plain.error is not None else "a raw error", said)
    if plain.error is not None:
        return Verdict("runs where generate() raises", f"{type(plain.error).__name__}: {plain.error}")
    if isinstance(plain.output, Tensor) != isinstance(ours.output, Tensor):
        return Verdict("another kind of output", f"{type(plain.output)} and {type(ours.output)}")
    wanted, found = plain.sequences, ours.sequences
    if not torch.equal(wanted, found):
        if _parts_at_a_tie(one, wanted, found):
            return Verdict(EQUAL, "parts at a tie of two logits")
        kind = "another layout" if wanted.shape != found.shape else "another text"
        return Verdict(kind, f"{wanted.tolist()} and {found.tolist()}")
    if one.options.get("streamer") and (plain.streamed, plain.ends) != (ours.streamed, ours.ends):
        return Verdict("another stream", f"{plain.streamed} and {ours.streamed}")
    if not isinstance(plain.output, Tensor):
        return _outputs_agree(plain.output, ours.output)
    return Verdict(EQUAL)


def _outputs_agree(plain: Any, ours: Any) -> Verdict:
    for name in ("scores", "logits"):
        wanted, found = getattr(plain, name), getattr(ours, name)
        if (wanted is None) != (found is None):
            return Verdict("a missing output", name)
        if wanted is None:
            continue
        if len(wanted) != len(found):
            return Verdict("another output", f"{name}: {len(wanted)} and {len(found)} steps")
        ended = torch.zeros(len(wanted[0]), dtype=torch.bool)
        for step, (one, other) in enumerate(zip(wanted, found, strict=True)):
            # Behind a row's end `generate` goes on with padding; ours are certain of it.
            ended |= (other == -torch.inf).sum(-1) == other.shape[-1] - 1
            if one.shape != other.shape or not torch.allclose(
                one[~ended], other[~ended], atol=2e-3, rtol=1e-3
            ):
                return Verdict("another output", f"{name} of step {step}")
    for name in FLAGS.values():
        # A `Generation` has neither, and is not asked for them.
        wanted, found = getattr(plain, name), getattr(ours, name, None)
        if not _same_layers(wanted, found):
            return Verdict("another output", name)
    return Verdict(EQUAL)


def _same_layers(wanted: Any, found: Any) -> bool:
    """Whether two outputs have the same steps of the same layers, which hold the same values."""
    if wanted is None or found is None:
        return wanted is found
    if isinstance(wanted, Tensor):
        return wanted.shape == found.shape and torch.allclose(wanted, found, atol=2e-3, rtol=1e-3)
    return len(wanted) == len(found) and all(map(_same_layers, wanted, found))


def _parts_at_a_tie(one: Call, wanted: Tensor, found: Tensor) -> bool:
    """Returns whether the first difference is at a token where two scores were nearly equal."""
    width = min(wanted.shape[1], found.shape[1])
    differs = (wanted[:, :width] != found[:, :width]).any(0)
    if not bool(differs.any()):
        return False
    place = int(differs.nonzero()[0])
    row = int((wanted[:, place] != found[:, place]).nonzero()[0])
    again = attrs.evolve(one, options=one.options | {"return_dict_in_generate": True, "output_scores": True})
    output = came_of(again, ours=False).output
    start = wanted.shape[1] - len(output.scores)
    best = output.scores[place - start][row].topk(2).values
    return float(best[0] - best[1]) < TIE
