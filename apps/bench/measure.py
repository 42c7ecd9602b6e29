"""Runs what a plan asks for, cell by cell, leaving out what is there already."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import ModelPrompt, Request, SamplingParams, StateBackend, zoo
from draftwood.apps.bench.arrivals import Arrivals
from draftwood.apps.bench.folder import Folder
from draftwood.apps.bench.grid import Cell, batch, cells
from draftwood.apps.bench.inputs import Inputs, check_inputs, inputs_of, more_than_tokens
from draftwood.apps.bench.plan import BINS, BenchPlan, Contest
from draftwood.apps.bench.specs import ORDINARY, Spec
from draftwood.apps.bench.writers import Prompts, Writer, writer
from draftwood.apps.files import datasets
from draftwood.apps.files.text import decode
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.chat import answer_tokens, encoded, encoded_chat
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.decoding.pass_time import PassTime, pass_seconds
from draftwood.protocols import registry
from draftwood.protocols.vocabulary import fit_vocabulary

_WARM = 4  # tokens that a contender writes before it is timed
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # of timed passes


@attrs.define(eq=False)
class Measurer:
    """Measures cells; holds the models of one pair at a time.

    Attributes:
        plan: of the run.
        sets: the data sets by name.
        known: the cells so far by key; refusals of transformers and baseline texts are read there.
    """

    plan: BenchPlan
    sets: Mapping[str, datasets.DataSet]
    known: Mapping[str, dict[str, Any]]
    _loaded: tuple[tuple[str, str], models.Loaded] | None = None
    _writers: dict[tuple[str, float], Writer] = attrs.field(factory=dict)
    _warm: set[tuple[str, float, int]] = attrs.field(factory=set)
    _asked: dict[str, list[list[list[int]]]] = attrs.field(factory=dict)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Returns the content of the cell's line.

        Raises:
            DraftwoodError: the strategy and the models do not fit, or a prompt is too long.
        """
        dtype = "float32" if cell.kind in ("check", "answer") else self.plan.dtype
        loaded = self._models(cell.contest.pair, dtype)
        if cell.kind == "passes":
            asked = [turns[0] for data_set in self._asked.values() for turns in data_set]
            pair = cell.contest.pair
            source = self._inputs(pair, loaded, next(iter(self.sets.values())).prompts[:1])
            return _passes(loaded, source) | {"shared_tokens": models.shared_tokens(loaded, asked)}
        if cell.kind == "capacity":
            return self._arrivals(loaded).capacity(cell)
        if cell.kind == "arrivals":
            return self._arrivals(loaded).measure(cell, self.known)
        prompts = self._prompts(cell, loaded)
        record = attrs.asdict(cell.contest) | {"kind": cell.kind, "prompt": cell.prompt, "turn": cell.turn}
        if cell.kind == "answer":
            ordinary = writer(Spec(ORDINARY), loaded, 0.0)
            written = ordinary.write_batch(prompts, cell.contest.new_tokens, cell.seed(self.plan.seed)).tokens
            return {
                **record,
                "tokens": answer_tokens(loaded.tokenizer, written, self.sets[cell.contest.data].stops),
            }
        if cell.spec is None:
            plain = self._baseline(cell)
            return {**record, **_agreement(loaded, prompts, plain, cell.contest.temperature)}
        record |= {
            "contender": cell.spec.label,
            "repetition": cell.repetition,
            "prompt_tokens": prompts.tokens
            if isinstance(prompts, Inputs)
            else sum(map(len, prompts)) // len(prompts),
        }
        if (reason := self._refusal(cell)) is not None:
            return {**record, "refused": reason}
        try:
            text = self._warmed(cell.spec, cell.contest, prompts).write_batch(
                prompts, cell.contest.new_tokens, cell.seed(self.plan.seed)
            )
        except UnsupportedModel as error:
            if not cell.spec.is_transformers or cell.spec.name == ORDINARY:
                raise
            return {**record, "refused": str(error)}
        right = self._right(cell, loaded, text.tokens)
        return {
            **record,
            **attrs.asdict(text),
            "right": right,
            "lossless": self._lossless(cell.spec, cell.contest),
            **self._question(cell, loaded, text.tokens),
        }

    def _models(self, pair: str, dtype: str) -> models.Loaded:
        """The models of a pair; all prompts and contenders are tried against them before any is measured."""
        if self._loaded is not None and self._loaded[0] == (pair, dtype):
            return self._loaded[1]
        self._loaded = None  # before the next ones take their memory
        gc.unfreeze()
        self._writers.clear()
        self._warm.clear()
        loaded, text = load(self.plan, pair, dtype), list[int]()
        for name, data_set in self.sets.items():
            read = _read_as_chat if self.plan.chat else _read_as_text
            self._asked[name] = [read(loaded.tokenizer, prompt) for prompt in data_set.prompts]
            check_inputs(self.plan, loaded, data_set)
            if not more_than_tokens(loaded, data_set.prompts):
                self._check_lengths(name, models.context(loaded.target))
                text += [token for turns in self._asked[name] for token in turns[0]]
        for temperature in self.plan.temperatures:
            for spec in self.plan.contenders(temperature):
                self._writers[spec.label, temperature] = writer(
                    spec, loaded, temperature, self.plan.rows_in_passes, text
                )
        # Else Python searches all objects of the libraries for garbage now and then, and a fifth of a second
        # is added to whichever text is being written.
        gc.collect()
        gc.freeze()
        self._loaded = (pair, dtype), loaded
        return loaded

    def _check_lengths(self, name: str, most: int | None) -> None:
        """Raise `InvalidInput` where a prompt of the data set and its text exceed the context."""
        cut, new = self.plan.prompt_lengths, max(self.plan.new_tokens)
        for number, turns in enumerate(self._asked[name]):
            length = sum(map(len, turns)) + new * (len(turns) - 1)
            length = length if 0 in cut else min(length, max(cut))
            if most is not None and length + new > most:
                several = len(turns) > 1
                raise InvalidInput(
                    f"Prompt {number} of {name} has {length} tokens{' in all turns' if several else ''}, "
                    f"which with {new} new ones exceeds the target's context of {most}; give --prompt-length"
                    f"{', --turns' if several else ''} or less --new-tokens."
                )

    def _prompts(self, cell: Cell, loaded: models.Loaded) -> Prompts:
        """The prompts of a cell's call."""
        data_set, rows = self.sets[cell.contest.data], cell.contest.rows
        numbers = batch(data_set, rows, cell.prompt) if rows > 1 else [cell.prompt]
        given = self._inputs(cell.contest.pair, loaded, [data_set.prompts[number] for number in numbers])
        if given is not None:
            return given
        return [self._prompt(attrs.evolve(cell, prompt=number), loaded.tokenizer) for number in numbers]

    def _inputs(self, pair: str, loaded: models.Loaded, prompts: Sequence[datasets.Prompt]) -> Inputs | None:
        """The arguments of `generate()` for prompts that are more than tokens; None where these are not."""
        return inputs_of(self.plan, pair, prompts, loaded) if more_than_tokens(loaded, prompts) else None

    def _prompt(self, cell: Cell, tokenizer: Any) -> list[int]:
        """The prompt of a cell: what was answered in earlier turns, and what is asked in this one.

        A first turn is cut at its end; of a longer conversation the end is kept.
        """
        cut = cell.contest.prompt_length or None
        first, *later = self._asked[cell.contest.data][cell.prompt]
        tokens, prompt = first[:cut], self.sets[cell.contest.data].prompts[cell.prompt]
        answers = [
            [] if prompt.is_answered(turn) else self.known[cell.answer(turn).key]["tokens"]
            for turn in range(cell.turn)
        ]
        if self.plan.chat and cell.turn:
            tokens = encoded_chat(tokenizer, prompt, [decode(tokenizer, answer) for answer in answers])
        else:
            for answer, asked in zip(answers, later, strict=False):
                tokens = [*tokens, *answer, *asked]
        return tokens[-cut:] if cut and cell.turn else tokens

    def _warmed(self, spec: Spec, contest: Contest, prompts: Prompts) -> Writer:
        """The contender, which has written a few tokens of so many rows when it is first used."""
        key = spec.label, contest.temperature
        if (*key, len(prompts)) not in self._warm:
            self._writers[key].write_batch(prompts, min(_WARM, contest.new_tokens), 0)
            self._warm.add((*key, len(prompts)))
        return self._writers[key]

    def _arrivals(self, loaded: models.Loaded) -> Arrivals:
        """The runs of requests that arrive, over the prompts of every data set."""
        cell_prompt = partial(self._prompt, tokenizer=loaded.tokenizer)
        return Arrivals(
            plan=self.plan,
            prompts=lambda contest: [
                cell_prompt(Cell("text", contest, prompt=number))
                for number in range(len(self.sets[contest.data].prompts))
            ],
            warmed=self._warmed,
        )

    def _refusal(self, cell: Cell) -> str | None:
        """Why transformers refused this contender's first text."""
        first = self.known.get(attrs.evolve(cell, prompt=0, repetition=0, turn=0).key, {})
        refused: str | None = first.get("refused")
        return refused

    def _lossless(self, spec: Spec, contest: Contest) -> bool:
        return spec.is_transformers or spec.strategy(contest.temperature).verifier.lossless

    def _right(self, cell: Cell, loaded: models.Loaded, tokens: Sequence[int]) -> bool | None:
        data_set = self.sets[cell.contest.data]
        answer = data_set.prompts[cell.prompt].answer
        if answer is None or cell.turn or cell.contest.rows > 1:
            return None
        return datasets.right(
            decode(loaded.tokenizer, answer_tokens(loaded.tokenizer, tokens)), answer, data_set.stops
        )

    def _question(self, cell: Cell, loaded: models.Loaded, tokens: Sequence[int]) -> dict[str, Any]:
        """Returns the extra fields of an answer in Spec-Bench's format, if the prompt is a question of it."""
        data_set = self.sets[cell.contest.data]
        question = data_set.prompts[cell.prompt].question
        if question is None or cell.contest.rows > 1:
            return {}
        number, category = question
        answer = decode(loaded.tokenizer, answer_tokens(loaded.tokenizer, tokens, data_set.stops))
        return {"question": {"id": number, "category": category, "answer": answer, "answered": time()}}

    def _baseline(self, cell: Cell) -> list[int]:
        """Returns the text of ordinary `generate` after the prompt."""
        key = attrs.evolve(cell, kind="text", spec=Spec(ORDINARY)).key
        tokens: list[int] = self.known[key]["tokens"]
        return tokens


def _read_as_text(tokenizer: Any, prompt: datasets.Prompt) -> list[list[int]]:
    """Returns the tokens that each turn of a prompt adds."""
    later = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompt.later]
    return [*encoded(tokenizer, [prompt.text], chat=False), *later]


def _read_as_chat(tokenizer: Any, prompt: datasets.Prompt) -> list[list[int]]:
    """Returns the tokens that each turn of a prompt adds in the chat template, the model's answers apart."""
    whole = [encoded_chat(tokenizer, prompt, [""] * turn) for turn in range(len(prompt.chat))]
    return [tokens[len(before) :] for before, tokens in zip([[], *whole], whole, strict=False)]


def load(plan: BenchPlan, pair: str, dtype: str) -> models.Loaded:
    """The models of a pair, the target widened or streamed where the plan says so."""
    target, draft = (name.strip() for name in pair.split(","))
    head = draft if drafters.names_head(draft) else None
    loaded = models.load(
        target,
        None if head else draft,
        tokenizer=None,
        dtype=models.Dtype(dtype),
        device=plan.device or None,
        trust_remote_code=plan.trust_remote_code,
        other_tokens=True,
        # What another precision or pair has left there may still be read.
        offload=Path(plan.offload, f"{plan.pairs.index(pair)}-{dtype}") if plan.offload else None,
        engine=models.EngineName(plan.engine),
    )
    loaded = attrs.evolve(loaded, head=head)
    if not plan.widen:
        return loaded
    if target not in zoo.names():
        raise InvalidInput(f"{target!r} is no model of the zoo, so it cannot be widened; leave --widen out.")
    from draftwood.zoo.widen import widen_to

    small: Any = loaded.target
    wide: Any = widen_to(small.model, parameters=plan.widen, dtype=small.model.dtype)
    return attrs.evolve(
        loaded, target=registry.load(wide.to(small.model.device), engine=loaded.loader.engine.value)
    )


def _passes(loaded: models.Loaded, source: Inputs | None) -> dict[str, Any]:
    """Returns times of passes by size, and the fits of STree's equations 7 and 8; no draft's for a head.

    An encoder-decoder, which reads nothing else, runs them after `source`.
    """
    measured: dict[str, Any] = {"kind": "passes", "draft": None}
    prompt = None if source is None else source.prompt(loaded.target.model)
    encoded = prompt is not None and prompt.encoded
    for name, backend in (("target", loaded.target), ("draft", loaded.draft)):
        if backend is None:
            continue
        most = models.context(backend) or 2 * _SIZES[-1]
        sizes = [size for size in _SIZES if 2 * size <= most]
        reads_source = encoded and backend.model.config.is_encoder_decoder
        read = prompt if backend is loaded.target else prompt and prompt.read_by(backend.model)
        times = pass_seconds(backend, sizes=sizes, context=read if reads_source and read else sizes[-1])
        fit = PassTime.fit(list(times), [sorted(taken)[len(taken) // 2] for taken in times.values()])
        measured[name] = {
            "seconds": {str(size): taken for size, taken in times.items()},
            "fit": attrs.asdict(fit),
        }
    return measured


def _agreement(
    loaded: models.Loaded, prompts: Prompts, text: Sequence[int], temperature: float
) -> dict[str, Any]:
    """Returns acceptance by draft probability, for tokens that the draft draws, summed along the text.

    Returns:
        `drawn`: the draft's probability mass by bins of the token's draft probability; `accepted`: the mass
        among it that recursive rejection would accept, `sum min(draft, target)`; `target`: the mass by bins
        of draft and of target probability.

    Source: DySpec, figure 2; the acceptance is theirs of section 3, worked out rather than drawn.
    """
    if isinstance(prompts, Inputs):
        read: list[int] | ModelPrompt = prompts.prompt(loaded.target.model)
        root, *written = text  # the first token comes from the prompt's own pass
    else:
        [[*read, root]], written = prompts, list(text)
    chain = torch.tensor([root, *written[:-1]])
    target_probs = SamplingParams(temperature=temperature).distribution(_along(loaded.target, read, chain))
    shaped = SamplingParams(temperature=temperature or 1.0)
    draft_probs = shaped.distribution(_drafted(loaded, read, chain))
    target_probs, draft_probs = target_probs.double().cpu(), draft_probs.double().cpu()
    draft_bin = (draft_probs * BINS).long().clamp(max=BINS - 1)
    target_bin = (target_probs * BINS).long().clamp(max=BINS - 1)
    mass = torch.zeros(BINS * BINS, dtype=torch.float64)
    mass.index_add_(0, (draft_bin * BINS + target_bin).flatten(), draft_probs.flatten())
    drawn, accepted = torch.zeros(2, BINS, dtype=torch.float64)
    drawn.index_add_(0, draft_bin.flatten(), draft_probs.flatten())
    accepted.index_add_(0, draft_bin.flatten(), torch.minimum(draft_probs, target_probs).flatten())
    return {
        "drawn": drawn.tolist(),
        "accepted": accepted.tolist(),
        "target": mass.view(BINS, BINS).tolist(),
    }


def _along(backend: StateBackend, read: list[int] | ModelPrompt, chain: Tensor) -> Tensor:
    """Logits `[positions, vocab]` after every token of `chain`, which follows what was `read`."""
    try:
        if isinstance(read, ModelPrompt):
            backend.read_prompt(read)
        else:
            backend.prefill([torch.tensor(read, dtype=torch.int64)])
        return backend.extend(chain[None], torch.arange(-1, len(chain) - 1).unsqueeze(0))[0].clone()
    finally:
        backend.release()


def _drafted(loaded: models.Loaded, read: list[int] | ModelPrompt, chain: Tensor) -> Tensor:
    """The draft's logits `[positions, vocab]` there."""
    drafter = fit_vocabulary(drafters.model_drafter(loaded), loaded.target.vocab_size)
    try:
        if isinstance(read, ModelPrompt):
            drafter.prefill_prompt(read, [0])
        else:
            drafter.prefill([torch.tensor(read, dtype=torch.int64)])
        return drafter.distributions([Request(chain, torch.arange(-1, len(chain) - 1))])[0].clone()
    finally:
        drafter.release()


def run(
    plan: BenchPlan, sets: Mapping[str, datasets.DataSet], folder: Folder
) -> tuple[list[Cell], Iterator[Cell]]:
    """The cells that are missing, and an iterator that measures and keeps them one by one."""
    missing = [cell for cell in cells(plan, sets) if cell.key not in folder.cells]
    measurer = Measurer(plan, sets, folder.cells)

    def steps() -> Iterator[Cell]:
        try:
            for cell in missing:
                folder.add(cell.key, measurer.measure(cell))
                yield cell
        finally:
            gc.unfreeze()  # what `Measurer` froze

    return missing, steps()
