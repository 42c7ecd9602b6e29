"""OpenVINO GenAI as a contender: its own pipelines over models that optimum-intel has exported."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.contenders import AS_THEY_ARE, Contender, Writer, Written

LONGEST = 1 << 30
"""Tokens that a pass may read."""


def is_installed() -> bool:
    """Whether OpenVINO GenAI can be imported."""
    return importlib.util.find_spec("openvino_genai") is not None


def contenders(
    target: Path,
    draft: Path,
    label: str,
    *,
    weights: str,
    dtype: str,
    threads: int,
    chains: Sequence[int],
    lookups: Sequence[int],
) -> list[Contender]:
    """Plain decoding, chains of a draft, and what its look-up finds in the text.

    Args:
        target: the exported folder.
        draft: that of the draft.
        label: its name in the table.
        weights: bits of the target's weights, or AS_THEY_ARE.
        dtype: of the arithmetic, "float32" or "bfloat16".
        threads: of the engine.
        chains: tokens that its draft proposes per target pass, a contender each.
        lookups: tokens that its look-up proposes, likewise.
    """
    import openvino_genai as genai

    options = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "INFERENCE_NUM_THREADS": threads,
    }
    plain = genai.LLMPipeline(str(target), "CPU", scheduler_config=_reading_anew(), **options)
    helper = genai.draft_model(str(draft), "CPU", **options)
    chained = genai.LLMPipeline(
        str(target), "CPU", draft_model=helper, scheduler_config=_reading_anew(), **options
    )
    ways = {f"{label}, plain": by_pipeline(plain)}
    ways |= {f"{label}, its draft of {chain}": by_pipeline(chained, chain=chain) for chain in chains}
    if lookups:
        copying = genai.LLMPipeline(
            str(target), "CPU", prompt_lookup=True, scheduler_config=_reading_anew(), **options
        )
        ways |= {f"{label}, its look-up of {count}": by_pipeline(copying, lookup=count) for count in lookups}
    texts = "the model" if weights == AS_THEY_ARE else label
    return [Contender(name, write, weights=weights, texts=texts) for name, write in ways.items()]


def _reading_anew() -> Any:
    """The scheduling of a pipeline that reads every prompt, as the other contenders do.

    By itself GenAI keeps the keys and values of earlier prompts. The comparison writes after the same few
    prompts again and again, and GenAI would read none of them.
    """
    import openvino_genai as genai

    settings = genai.SchedulerConfig()
    settings.enable_prefix_caching = False
    settings.max_num_batched_tokens = LONGEST  # its own choice too: a prompt is read in one pass
    return settings


NGRAM = 3
"""Tokens that its look-up compares at most; GenAI's examples and tests have it so."""


def by_pipeline(pipeline: Any, *, chain: int = 0, lookup: int = 0) -> Writer:
    """A pipeline of GenAI, whose draft or look-up proposes so many tokens; 0: it has none."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    def write(prompt: list[int], count: int) -> Written:
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.do_sample, settings.ignore_eos = count, False, True
        if chain or lookup:
            settings.num_assistant_tokens = chain or lookup
        if lookup:
            settings.max_ngram_size = NGRAM
        ids = openvino.Tensor(np.array([prompt], np.int64))
        mask = openvino.Tensor(np.ones((1, len(prompt)), np.int64))
        out = pipeline.generate(genai.TokenizedInputs(ids, mask), settings)
        tokens = list(out.tokens[0])
        passes = tokens
        if chain:
            # Its number of accepted tokens leaves out some of those that it writes.
            passes = out.extended_perf_metrics.main_model_metrics.raw_metrics.m_durations
        elif lookup:
            passes = out.perf_metrics.raw_metrics.m_batch_sizes  # tokens of every pass
        return Written(tokens, len(passes))

    return write
