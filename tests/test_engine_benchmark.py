"""The comparison of engines: turns, equal texts, the table, chains over llama.cpp, prompts of GenAI."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.engines import genai
from benchmarks.engines.contenders import Contender, Written
from benchmarks.engines.llama import by_chains
from benchmarks.engines.makers import Models, draft_trees, genai_ways, llama_ways, makers, transformers_ways
from benchmarks.engines.processes import in_processes
from benchmarks.engines.turns import TimedText, table, taken
from benchmarks.research.prompts import prompts_of
from draftwood import zoo
from draftwood.base.errors import InvalidInput


class Counting:
    """A model whose next token is the last one plus `step`, modulo 50; in place of llama.cpp's."""

    def __init__(self, step: int, wrong_after: int = 0) -> None:
        self.step, self.wrong_after, self.text, self.calls = step, wrong_after, list[int](), 0

    @property
    def length(self) -> int:
        return len(self.text)

    def keep(self, length: int) -> None:
        assert length <= len(self.text)
        del self.text[length:]

    def likeliest(self, tokens: Sequence[int], *, last: int) -> list[int]:
        assert tokens
        self.text += tokens
        self.calls += 1
        return [self._next(token) for token in tokens[-last:]]

    def _next(self, token: int) -> int:
        wrong = self.wrong_after and token % self.wrong_after == 0
        return (token + self.step + bool(wrong)) % 50


@pytest.mark.parametrize("wrong_after", [0, 1, 3, 4])
def test_chains_write_what_the_target_writes(wrong_after: int) -> None:
    target: Any = Counting(3)
    draft: Any = Counting(3, wrong_after)
    plain = by_chains(target, draft, chain=0)([1, 2, 4], 20)
    assert plain == Written([(4 + 3 * (place + 1)) % 50 for place in range(20)], 20)
    for chain in (1, 4, 6):
        target.calls = 0
        written = by_chains(target, draft, chain=chain)([1, 2, 4], 20)
        assert written.tokens == plain.tokens
        assert written.passes == target.calls
        if not wrong_after:
            assert written.passes == 1 + -(-19 // (chain + 1))


def test_genai_reads_every_prompt_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = list[dict[str, Any]]()
    stand_in: Any = ModuleType("openvino_genai")
    stand_in.SchedulerConfig = SimpleNamespace
    stand_in.draft_model = lambda *_, **__: "draft"
    stand_in.LLMPipeline = lambda *_, **options: made.append(options)
    monkeypatch.setitem(sys.modules, "openvino_genai", stand_in)
    monkeypatch.setitem(sys.modules, "openvino", ModuleType("openvino"))
    found = genai.contenders(
        tmp_path,
        tmp_path,
        "OpenVINO GenAI",
        weights="as they are",
        dtype="float32",
        threads=1,
        chains=[4, 12],
        lookups=[5],
    )
    ways = ["plain", "its draft of 4", "its draft of 12", "its look-up of 5"]
    assert [one.name.partition(", ")[2] for one in found] == ways
    assert [options.get("draft_model") for options in made] == [None, "draft", None]
    assert [options.get("prompt_lookup") for options in made] == [None, None, True]
    assert [options["scheduler_config"].enable_prefix_caching for options in made] == [False] * 3


@pytest.mark.parametrize(("drafts", "passes"), [({}, 8), ({"chain": 4}, 3), ({"lookup": 5}, 4)])
def test_passes_of_genai_are_those_that_it_timed(
    drafts: dict[str, int], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts 4 accepted tokens where 8 were written by a prompt and two passes more."""
    genai_module: Any = ModuleType("openvino_genai")
    genai_module.GenerationConfig = genai_module.TokenizedInputs = lambda *_: SimpleNamespace()
    openvino_module: Any = ModuleType("openvino")
    openvino_module.Tensor = lambda array: array
    monkeypatch.setitem(sys.modules, "openvino_genai", genai_module)
    monkeypatch.setitem(sys.modules, "openvino", openvino_module)
    timed = SimpleNamespace(raw_metrics=SimpleNamespace(m_durations=[1.0] * 3))
    metrics = SimpleNamespace(main_model_metrics=timed, get_num_accepted_tokens=lambda: 4)
    copied = SimpleNamespace(raw_metrics=SimpleNamespace(m_batch_sizes=[1, 3, 2, 2]))
    answer = SimpleNamespace(tokens=[list(range(8))], extended_perf_metrics=metrics, perf_metrics=copied)
    pipeline = SimpleNamespace(generate=lambda *_: answer)
    assert genai.by_pipeline(pipeline, **drafts)([1, 2], 8) == Written(list(range(8)), passes)


def process_writers(first: str, second: str) -> list[Contender]:
    """Two that write the number of their process, the second slowly."""

    def write(prompt: list[int], count: int) -> Written:
        return Written([os.getpid(), torch.get_num_threads(), *prompt][:count], 2)

    def slow(prompt: list[int], count: int) -> Written:
        sleep(0.1)
        return write(prompt, count)

    def ending(prompt: list[int], count: int) -> Written:
        os._exit(3)

    return [
        Contender(first, write, ours=True),
        Contender(second, slow, weights="int8", texts="rounded"),
        Contender(f"{first}, ending", ending),
    ]


def test_every_engine_has_a_process_of_its_own_which_times_its_texts() -> None:
    with ExitStack() as until:
        makers = [(process_writers, ("a", "b")), (process_writers, ("c", "d"))]
        made = in_processes(makers, threads=3, until=until)
        written = {one.name: one.write([7, 8], 3) for one in made if "ending" not in one.name}
        with pytest.raises(InvalidInput, match="'c, ending' has ended by itself; leave it out"):
            made[-1].write([7, 8], 3)
    processes = {name: text.tokens[0] for name, text in written.items()}
    assert processes["a"] == processes["b"] != processes["c"] == processes["d"]
    assert os.getpid() not in processes.values()
    assert all(text.tokens[1:] == [3, 7] and text.passes == 2 for text in written.values())
    assert written["b"].seconds >= 0.1 > written["a"].seconds > 0
    assert 0 < written["b"].cpu < 0.1  # a sleeper keeps no processor busy
    assert [(one.name, one.ours, one.weights, one.texts) for one in made[3:5]] == [
        ("c", True, "as they are", "the model"),
        ("d", False, "int8", "rounded"),
    ]


def test_engines_are_asked_for_the_weights_and_arithmetic_that_they_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.engines.genai.is_installed", lambda: True)
    monkeypatch.setattr("benchmarks.engines.makers.gguf_is_installed", lambda: True)
    for name in ("openvino", "openvino-int8"):
        (tmp_path / name / "target").mkdir(parents=True)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "target-BF16.gguf").touch()
    models = Models("a", "b", folders=tmp_path, widen=0, dtype="bfloat16", threads=2)
    found = makers(
        models,
        others=["transformers", "genai", "llama.cpp"],
        engines=["eager", "openvino"],
        bits=["as they are", "int8"],
        trees=[],
        chains=[6],
        lookups=[5],
    )
    assert [(make, arguments[1:]) for make, arguments in found] == [
        (transformers_ways, ()),
        (genai_ways, ("as they are", "bfloat16", ([6], [5]))),
        (llama_ways, ("as they are",)),
        (draft_trees, ("eager", "as they are", [])),
        (draft_trees, ("openvino", "as they are", [])),
        (genai_ways, ("int8", "bfloat16", ([6], [5]))),
        (genai_ways, ("int8", "float32", ([6], [5]))),
        (draft_trees, ("openvino", "int8", [])),
    ]


def test_trees_are_chosen_by_other_prompts_than_those_that_are_shown(tmp_path: Path) -> None:
    numbers = range(4)
    (tmp_path / "gsm8k_test.jsonl").write_text(
        "".join(f'{{"question": "What is 2 + {number}?"}}\n' for number in numbers)
    )
    (tmp_path / "humaneval.jsonl").write_text(
        "".join(f'{{"prompt": "def f{number}(x):\\n"}}\n' for number in numbers)
    )
    (tmp_path / "wikitext2_test.txt").write_text(
        "\n\n".join(f"Town {number} lies on the river. " * 30 for number in numbers)
    )
    shown = prompts_of(tmp_path, zoo.tokenizer(), 2)
    others = prompts_of(tmp_path, zoo.tokenizer(), 2, calibration=True)
    assert len(shown) == len(others) == 6
    assert all(prompt not in shown for prompt in others)


def writing(tokens: list[int]) -> Any:
    return lambda prompt, count: Written([prompt[0], *tokens][:count], 2)


def test_contenders_take_turns_and_texts_are_compared_with_the_first_of_the_same_texts() -> None:
    order = list[tuple[str, int]]()

    def noted(name: str, tokens: list[int]) -> Any:
        write = writing(tokens)

        def noting(prompt: list[int], count: int) -> Written:
            order.append((name, prompt[0]))
            return write(prompt, count)

        return noting

    contenders = [
        Contender("plain", noted("plain", [1, 2])),
        Contender("other", noted("other", [1, 3])),
        Contender("rounded", noted("rounded", [1, 3]), weights="int8", texts="rounded"),
        Contender("ours", noted("ours", [1, 2]), ours=True),
    ]
    names = [contender.name for contender in contenders]
    turns = taken(contenders, [[5], [6], [7], [8], [9]], count=3, repetitions=2, warm_up=0)
    assert {turn.contender: turn.equal for turn in turns} == {
        "plain": True,
        "other": False,
        "rounded": True,
        "ours": True,
    }
    assert [turn.repetition for turn in turns] == [0] * 20 + [1] * 20
    assert [turn.prompt for turn in turns] == [number for number in range(5) for _ in range(4)] * 2
    assert [turn.contender for turn in turns] == names * 10
    left, drawn = iter(order[20:]), list[tuple[str, ...]]()  # four warm up with five texts each
    for prompts in ([8, 5, 6, 7, 8], [9, 9]) * 2:  # the first of a turn is not timed
        whole = [[next(left) for _ in prompts] for _ in names]
        assert all(turn == [(turn[0][0], prompt) for prompt in prompts] for turn in whole)
        drawn.append(tuple(turn[0][0] for turn in whole))
    assert next(left, None) is None
    assert all(sorted(one) == sorted(names) for one in drawn)
    assert len(set(drawn)) > 2  # nobody always follows the same one


def test_contenders_write_for_a_while_before_they_are_timed() -> None:
    written = list[int]()

    def write(prompt: list[int], count: int) -> Written:
        written.append(prompt[0])
        sleep(0.02)
        return Written([1] * count)

    turns = taken([Contender("slow", write)], [[5], [6]], count=3, repetitions=1, warm_up=0.09)
    assert len(turns) == 2
    assert 4 <= len(written) - 3 <= 6
    assert written[:3] == [5, 6, 5]


def test_the_table_compares_the_best_of_each_side_for_the_same_weights() -> None:
    contenders = [
        Contender("generate()", writing([])),
        Contender("engine", writing([])),
        Contender("ours", writing([]), ours=True),
        Contender("engine, int8", writing([]), weights="int8"),
        Contender("ours, int8", writing([]), ours=True, weights="int8"),
    ]
    seconds = {"generate()": 8.0, "engine": 2.0, "ours": 4.0, "engine, int8": 1.5, "ours, int8": 1.0}
    turns = [
        TimedText(name, repetition, prompt, each, 2 * each, 16, 4, 0.001, True)
        for name, each in seconds.items()
        for repetition in range(2)
        for prompt in range(3)
    ]
    lines = table(contenders, turns)
    assert lines[3].split() == [
        "ours",
        "4.0",
        "4.0",
        "4.0",
        "2.00",
        "(2.00-2.00)",
        "2.0",
        "4.00",
        "6",
        "of",
        "6",
    ]
    assert lines[6] == "weights as they are: ours over engine: 0.50 (0.50-0.50)"
    assert lines[7] == "weights int8: ours, int8 over engine, int8: 1.50 (1.50-1.50)"
    assert "took 1.00 ms at least" in lines[8]


def test_the_best_is_chosen_by_the_times_that_are_compared() -> None:
    """Medians over repetitions, as the ratio has it: one slow text decides on nothing."""
    contenders = [
        Contender("engine", writing([])),
        Contender("ours, small", writing([]), ours=True),
        Contender("ours, large", writing([]), ours=True),
    ]
    seconds = {"engine": [2.0, 2.0, 2.0], "ours, small": [1.2, 1.2, 1.2], "ours, large": [9.0, 1.0, 1.0]}
    turns = [
        TimedText(name, repetition, prompt, taken, 2 * taken, 16, 4, 0.001, True)
        for name, times in seconds.items()
        for repetition, taken in enumerate(times)
        for prompt in range(3)
    ]
    assert table(contenders, turns)[4] == "weights as they are: ours, large over engine: 2.00 (2.00-2.00)"
