"""An index of text in another tokenizer's tokens: unchanged, and converted to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks.research.prompts import prompts_of
from draftwood import Drafter, SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.apps.files.corpus import documents
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.protocols import registry
from draftwood.strategies.drafters.retokenised import retokenised as written_anew
from draftwood.strategies.drafters.retrieval import RetrievalDrafter
from draftwood.strategies.drafters.shared_tokens import SharedTokens
from draftwood.strategies.drafters.suffix_index import SuffixIndex

TEMPERATURES = (0.0, 1.0)


def retokenised(
    data: Annotated[Path, typer.Argument(help="Folder with prompts.")],
    text: Annotated[list[Path], typer.Argument(help="Text for the index (.txt, .txt.gz, .jsonl).")],
    characters: Annotated[int, typer.Option(help="Characters of each file.", min=1)] = 1_000_000,
    vocabulary: Annotated[int, typer.Option(help="Tokens of the other tokenizer.", min=300)] = 8192,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=2)] = 48,
    budget: Annotated[int, typer.Option(help="Nodes of a tree.", min=1)] = 16,
) -> None:
    """Tokens a round of llama-7m with retrieval (recipe `rest`) from one text under three tokenizations.

    In the target's tokens; in the tokens of a byte-level BPE that is trained on the text, through
    `shared-tokens`; and in these, but converted.

    \b
    Examples:
      python -m benchmarks retokenised data/ data/train/code.txt.gz data/train/math.txt.gz
    """
    models.quiet()
    torch.set_num_threads(1)
    own = zoo.tokenizer()
    texts = [words for file in text for words in beginning(documents(file), characters)]
    other = trained_tokenizer(texts, vocabulary)
    in_own, in_other = (
        [np.array(row) for row in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]]
        for tokenizer in (own, other)
    )
    anew = list(written_anew(in_other, other, own))
    size = zoo.load("llama-7m").config.vocab_size
    through = SharedTokens.between(drafter(in_other, len(other)), own, other, vocab_size=size)
    drafters = {
        "own tokens": drafter(in_own, size),
        "another's, written anew": drafter(anew, size),
        "another's, shared tokens": through,
    }
    rows = prompts_of(data, own, prompts)
    jobs = [(name, temperature) for name in drafters for temperature in TEMPERATURES]
    steps = (measured(drafters[name], temp, rows, tokens=tokens, budget=budget) for name, temp in jobs)
    watching = watched(steps, "drafters", total=len(jobs), console=Console(stderr=True))
    found = dict(zip(jobs, watching, strict=True))
    same = sum(map(np.array_equal, in_own, anew)) / len(texts)
    typer.echo(
        f"{device_name()}: {len(texts)} documents, {sum(map(len, in_own))} tokens of the target's and "
        f"{sum(map(len, in_other))} of the other's, which has {through.tokens.overlap:.1%} of the target's; "
        f"written anew, {same:.1%} of the documents are as the target's tokenizer makes them"
    )
    for line in table(found):
        typer.echo(line)


def beginning(texts: Sequence[str], characters: int) -> list[str]:
    """The first of `texts`, as many as have no more characters together."""
    known = [one for one in texts if one]
    sums = accumulate(map(len, known))
    return [one for one, _ in takewhile(lambda pair: pair[1] <= characters, zip(known, sums, strict=True))]


def trained_tokenizer(texts: Sequence[str], size: int) -> Any:
    """A byte-level BPE of `size` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer, plain.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>")


def drafter(rows: Sequence[np.ndarray], size: int) -> RetrievalDrafter:
    """Retrieval from these documents."""
    return RetrievalDrafter(SuffixIndex.of(rows, vocab_size=size), vocab_size=size)


def measured(
    drafter: Drafter, temperature: float, prompts: list[list[int]], *, tokens: int, budget: int
) -> dict[str, float]:
    """The sums of all texts after `prompts`."""
    recipe = registry.create("recipes", "rest", {"budget": budget})
    target = load(zoo.load("llama-7m"))
    decoder = SpeculativeDecoder(target, drafter, recipe.policy, recipe.verifier)
    sums = {"tokens": 0.0, "rounds": 0.0, "drafted": 0.0, "accepted": 0.0}
    for place, prompt in enumerate(prompts):
        out: Any = decoder.generate(
            [prompt],
            max_new_tokens=tokens,
            sampling=SamplingParams(temperature=temperature),
            draft_sampling=SamplingParams(temperature=1.0),
            seed=place,
            return_dict_in_generate=True,
        )
        found = out.statistics.sums
        sums = {name: value + found[name] for name, value in sums.items()}
        sums["tokens"] -= found["prefill_tokens"]
    return sums


def table(found: dict[tuple[str, float], dict[str, float]]) -> list[str]:
    """A line a tokenization: of every temperature the nodes and tokens a round."""
    lines = [f"{'':>26}" + "".join(f"{f'T={t:g}: drafted, tokens':>26}" for t in TEMPERATURES)]
    for name in dict.fromkeys(name for name, _ in found):
        columns = ""
        for temperature in TEMPERATURES:
            sums = found[name, temperature]
            columns += f"{sums['drafted'] / sums['rounds']:18.2f}{sums['tokens'] / sums['rounds']:8.2f}"
        lines.append(f"{name:>26}{columns}")
    return lines
