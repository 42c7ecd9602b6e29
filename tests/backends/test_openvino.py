"""Passes that OpenVINO runs: law S, texts, changed models, refusals. `make test-openvino` runs these."""

from __future__ import annotations

import copy
import logging
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("openvino", reason="the extra `openvino` brings it")

from draftwood import Deterministic, LevelPlan, SpeculativeDecoder, create, custom_generate, load
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.openvino.runner import OpenVinoRunner
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import bloom, tiny, words
from tests.backends.recurrent_models import build as recurrent
from tests.backends.test_architectures import MASKED, VOCAB, build, pair
from tests.thorough import some_of

pytestmark = pytest.mark.openvino

# Grouped keys; soft-caps and windows; sinks; keys and values of differing size, joined.
SOME = ["llama", "gemma2", "gpt_oss", "deepseek_v3"]


@cache
def served(name: str) -> Any:
    """A backend, which is converted once; every example of law S begins without rows."""
    return TransformerBackend(pair(name, torch.float32)[0], chunk=16, runner=OpenVinoRunner)


@pytest.mark.parametrize("name", some_of(MASKED, SOME))
class TestLawS(StateBackendTests):
    vocab_size, examples = VOCAB, 12

    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.name = name
        _, self.logits_after = pair(name, torch.float32)  # type: ignore[method-assign]

    def make_backend(self) -> Any:
        backend = served(self.name)
        backend.release()
        return backend


def decoder(backend: Any, draft: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target=backend,
        drafter=create("drafters", "model", {"backend": draft}),
        policy=create("policies", "layered-dyspec", {"budget": 6, "depth": 3, "law": Deterministic}),
        verifier=create("verifiers", "greedy"),
    )


def written(one: SpeculativeDecoder, prompts: list[list[int]], count: int = 24) -> list[list[int]]:
    out: Any = one.generate(prompts, max_new_tokens=count, eos_token_id=[], return_dict_in_generate=True)
    return out.tokens


def by_generate(model: Any, prompts: list[list[int]], count: int = 24) -> list[list[int]]:
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
        )
        texts.append(out[0, len(prompt) :].tolist())
    return texts


@pytest.mark.parametrize("name", some_of(MASKED, ["llama", "gemma2"]))
def test_texts_are_those_of_generate(name: str) -> None:
    model = build(name)
    one = decoder(load(model, engine="openvino"), load(model, engine="eager"))
    prompts = [[3 + i % 40 for i in range(length)] for length in (30, 3, 11)]
    assert written(one, prompts) == by_generate(copy.deepcopy(model), prompts)


def test_rows_come_and_go_as_they_do_over_passes_as_they_are() -> None:
    model = tiny()
    backends: list[Any] = [load(model, engine="openvino"), TransformerBackend(model)]
    for round_ in range(4):
        logits = []
        for backend in backends:
            if not round_:
                backend.prefill([torch.tensor(words(length)) for length in (140, 3)])
            if round_ == 2:
                logits.append(backend.first_logits([torch.tensor(words(270))]))
                backend.release([0])
            tokens = torch.tensor([[1, 2, 3], [4, 5, 0]])
            first = backend.extend(tokens, torch.tensor([[-1, 0, 0], [-1, -1, -1]]), [3, 2])
            second = backend.extend(torch.tensor([[6], [7]]), torch.tensor([[2], [1]]))
            backend.commit([[0, 2, 3], [1]])
            logits += [first[0], first[1, :2], second[:, 0]]
        half = len(logits) // 2
        ours, theirs = torch.cat(logits[:half]), torch.cat(logits[half:])
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_weights_that_change_are_converted_again() -> None:
    model = tiny()
    one = decoder(load(model, engine="openvino"), load(tiny()))
    prompts = [words(9)]
    written(one, prompts)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn(model.lm_head.weight.shape) / 4)
    assert written(one, prompts) == by_generate(model, prompts)
    model.model.embed_tokens.weight.data.mul_(-1.5)  # which torch does not count
    assert written(one, prompts) == by_generate(model, prompts)


def test_features_are_those_of_passes_as_they_are() -> None:
    model = tiny()
    taken = []
    for backend in (load(model, engine="openvino"), load(model)):
        backend.keep_features([1, 2])
        backend.prefill([torch.tensor(words(12)), torch.tensor(words(5))])
        backend.extend(torch.tensor([[1, 2, 3]] * 2), torch.tensor([[-1, 0, 0]] * 2))
        backend.commit([[0, 2], [0]])
        taken.append(backend.take_features())
    for ours, theirs in zip(*taken, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "fused"), [("llama", True), ("mistral", True), ("gpt_oss", False)])
def test_attention_runs_as_one_operation_unless_more_than_a_mask_changes_its_scores(
    name: str, fused: bool
) -> None:
    backend = served(name)
    backend.release()
    backend.prefill([torch.tensor(words(5))])
    ops = backend._runner._current().compiled.form.get_runtime_model().get_ops()
    kinds = [one.get_rt_info()["layerType"].astype(str) for one in ops]
    assert len(kinds) > 10
    assert ("Softmax" not in kinds) == fused


def test_bfloat16_keeps_apart_positions_beyond_256() -> None:
    model = tiny().to(torch.bfloat16)
    backends = [load(model, engine="openvino"), load(model)]
    logits = [backend.first_logits([torch.tensor(words(300))])[0].float() for backend in backends]
    exact = load(copy.deepcopy(model).float()).first_logits([torch.tensor(words(300))])[0]
    ours, theirs = [float((one - exact).square().mean().sqrt() / exact.std()) for one in logits]
    assert ours <= 2 * theirs + 0.01


def test_what_openvino_does_not_run_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedModel, match="BloomForCausalLM decodes one path per row, so OpenVINO"):
        load(bloom(), engine="openvino")
    with pytest.raises(UnsupportedModel, match="computes in float64, not in float32 or bfloat16"):
        load(tiny().double(), engine="openvino")


def test_an_engine_that_computes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = OpenVinoRunner.run
    monkeypatch.setattr(OpenVinoRunner, "run", lambda self, inputs: (run(self, inputs)[0] * 1.01, None))
    with pytest.raises(UnsupportedModel, match="OpenVINO does not compute what LlamaForCausalLM does"):
        load(tiny(), engine="openvino")


def test_levels_that_cannot_be_converted_are_drafted_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operation")

    monkeypatch.setattr("draftwood.backends.openvino.runner.LevelsCall", refuse)
    model = tiny()
    one = decoder(load(model), load(model, engine="openvino"))
    assert written(one, [words(9)]) == by_generate(model, [words(9)])
    assert "as OpenVINO does not run them in one call: RuntimeError: no such operation." in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", some_of(["int8", "int4"], ["int8"]))
def test_weights_of_few_bits_make_another_model_that_trees_follow(weights: Any, dtype: torch.dtype) -> None:
    model = tiny(hidden_size=64, intermediate_size=128).to(dtype)
    target, plain = (load(model, engine="openvino", weights=weights) for _ in range(2))
    prompts = [words(30), words(5)]
    for prompt in prompts:  # row by row and token by token
        text, logits = [], plain.first_logits([torch.tensor(prompt)])[0]
        for _ in range(16):
            text.append(int(logits.argmax()))
            logits = plain.extend(torch.tensor([[text[-1]]]), torch.tensor([[-1]]))[0, 0]
            plain.commit([[0]])
        plain.release()
        assert written(decoder(target, load(model)), [prompt], 16) == [text]
    exact = load(model).first_logits([torch.tensor(prompts[0])])
    off = float((target.first_logits([torch.tensor(prompts[0])]) - exact).abs().max())
    assert 1e-3 < off < (0.5 if weights == "int8" else 8.0)


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.float32, "int8"),
        (torch.bfloat16, None),
        (torch.bfloat16, "int8"),
        (torch.bfloat16, "int4"),
    ],
)
def test_every_precision_keeps_the_fast_forms(dtype: torch.dtype, weights: Any) -> None:
    # In bfloat16 rounded weights were unpacked when they were compiled, and rotations took ten operations.
    model = tiny(hidden_size=64, intermediate_size=64).to(dtype)
    kinds = [node.get_rt_info()["layerType"].value for node in compiled_nodes(model, weights)]
    linear = sum(isinstance(part, torch.nn.Linear) for part in model.modules())
    assert kinds.count("FullyConnected") == linear
    assert kinds.count("RoPE") == 2 * len(model.model.layers)


@pytest.mark.parametrize(
    ("width", "weights", "together"),
    [(64, "int8", 64), (128, "int8", 128), (96, "int8", 32), (48, "int8", 32), (128, "int4", 64)],
)
def test_rounded_weights_run_in_float32_over_activations_of_8_bits(
    width: int, weights: Any, together: int
) -> None:
    # In bfloat16 rounded activations made no pass faster, and a pass took up to twice as long.
    model = tiny(hidden_size=width, intermediate_size=4 * width)
    wide, narrow = (
        load(one, engine="openvino", weights=weights) for one in (copy.deepcopy(model), model.bfloat16())
    )
    for backend, groups in ((wide, 0), (narrow, together)):
        form = backend._runner._converted.compiled.form  # type: ignore[attr-defined]
        assert form.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
        assert form.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == groups
    # What is kept is read as it is: a conversion would take longer the longer the text is.
    assert {arena.dtype for arena in narrow._cache.arenas} == {torch.float32}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dtype", "bounds"), [(torch.float32, 0), (torch.bfloat16, 2)])
def test_one_thread_runs_no_joint_mlp(
    dtype: torch.dtype, bounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    assert torch.get_num_threads() == 1
    # With one thread OpenVINO divides by zero when it builds such an operation, on CPUs with matrix tiles.
    model, graphs = tiny(num_hidden_layers=2).to(dtype), list[Any]()
    compile_model = openvino.Core.compile_model

    def watched(core: Any, graph: Any, **named: Any) -> Any:
        graphs.append(graph)
        return compile_model(core, graph, **named)

    monkeypatch.setattr(openvino.Core, "compile_model", watched)
    load(model, engine="openvino")
    assert graphs
    for graph in graphs:
        assert [node.get_type_name() for node in graph.get_ops()].count("Clamp") == bounds


def compiled_nodes(model: Any, weights: Any) -> list[Any]:
    """The nodes of the graph that OpenVINO runs for the passes of `model`."""
    backend: Any = load(model, engine="openvino", weights=weights)
    nodes: list[Any] = backend._runner._converted.compiled.form.get_runtime_model().get_ops()
    return nodes


def test_prompts_are_read_without_padding_and_without_the_slots_before_them() -> None:
    backend: Any = load(tiny(), engine="openvino")
    backend.prefill([torch.tensor(words(101))])
    assert backend.lengths == [101]
    shape = backend._runner._reading.shape
    assert (shape.nodes, shape.slots) == (101, 0)


def test_single_tokens_after_trees_are_soon_passes_of_their_own_size() -> None:
    backend: Any = load(tiny(), engine="openvino")
    steady = backend._runner._steady
    backend._runner._recent.clear()
    assert [steady(nodes) for nodes in (9, 7, 9, 1, 1, 1, 1)] == [9, 9, 9, 9, 9, 9, 1]


def test_the_next_text_finds_buffers_and_requests_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import openvino

    one = decoder(load(tiny(), engine="openvino"), load(tiny(num_hidden_layers=1), engine="openvino"))
    backends: list[Any] = [one.target, one.drafter.backend]  # type: ignore[attr-defined]
    prompt = words(9)
    expected = written(one, [prompt])
    made = list[Any]()
    make = openvino.CompiledModel.create_infer_request
    monkeypatch.setattr(
        openvino.CompiledModel,
        "create_infer_request",
        lambda compiled: made.append(compiled) or make(compiled),
    )
    assert written(one, [prompt]) == expected
    assert not made
    # Nothing of what is left there is read.
    for backend in backends:
        for arena in backend._cache.arenas:
            arena.fill_(torch.nan)
    assert written(one, [prompt]) == expected
    # Other rows get other buffers, and the old ones go.
    slots = backends[0]._cache.plan.slots
    assert written(one, [prompt, prompt]) == expected * 2
    assert backends[0]._cache.plan.rows == 2
    assert [len(arena[0]) for arena in backends[0]._cache.arenas] == [2]
    # A text that needs fewer slots by one size has the same buffers.
    assert written(one, [words(slots)]) == written(one, [words(slots)])
    larger = backends[0]._cache.arenas[0]
    assert written(one, [prompt]) == expected
    assert backends[0]._cache.arenas[0] is larger


def test_auto_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "draftwood"):
        chosen: Any = load(tiny(), engine="auto")
        assert isinstance(chosen._runner, OpenVinoRunner)
        assert "Passes of LlamaForCausalLM run by OpenVINO, which is installed" in caplog.text
        refused: Any = load(recurrent("mamba"), engine="auto")
        assert not isinstance(refused._runner, OpenVinoRunner)
        assert "run eagerly: MambaForCausalLM has recurrent layers" in caplog.text


def test_layers_are_left_out_over_the_engine_too() -> None:
    model = tiny(num_hidden_layers=3)
    backend: Any = load(model, engine="openvino")
    smaller = backend.without_layers([1])
    prompt = torch.tensor(words(9))
    right = load(model).without_layers([1]).first_logits([prompt])  # type: ignore[attr-defined]
    smaller.first_logits([prompt])
    smaller.release()
    assert torch.allclose(smaller.first_logits([prompt]), right, rtol=1e-4, atol=1e-5)


def test_engine_and_capture_do_not_contradict_each_other() -> None:
    with pytest.raises(
        InvalidInput, match="compiles passes with torch, which engine='openvino' does not run"
    ):
        load(tiny(), engine="openvino", capture="compile")
    with pytest.raises(InvalidInput, match="engine is 'tvm'; it must be one of"):
        load(tiny(), engine="tvm")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match="rounds weights for OpenVINO, and engine='eager' may run something else"
    ):
        load(tiny(), weights="int8")


def test_the_loop_of_generate_runs_over_the_engine() -> None:
    model, draft = tiny(), tiny(num_hidden_layers=1)
    loop = custom_generate(
        drafter=draft,
        policy=create("policies", "chain", {"length": 3}),
        verifier=create("verifiers", "greedy"),
        engine="openvino",
    )
    ids = torch.tensor([words(9)])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, eos_token_id=None, **options)
    assert model.generate(ids, eos_token_id=None, custom_generate=loop, **options).equal(expected)


@pytest.mark.parametrize("name", some_of(["llama", "gemma2", "gpt2", "deepseek_v3"], ["gemma2"]))
def test_all_levels_in_one_call_are_those_of_passes_one_by_one(name: str) -> None:
    model = build(name)
    backends: list[Any] = [load(model, engine="openvino"), load(model)]
    plan = LevelPlan(depth=4, width=4, branching=4, budget=6)
    texts = [torch.tensor([3 + i % 40 for i in range(length)]) for length in (20, 12)]
    for backend in backends:
        backend.prefill(texts)
    engine, plain = backends
    whole = 0
    for tokens, parents in (([[5], [6]], [[-1], [-1]]), ([[7, 8], [9, 10]], [[-1, 0], [-1, 0]])) * 4:
        given = torch.tensor(tokens), torch.tensor(parents)
        found = engine.extend_levels(*given, plan)
        root = len(tokens[0]) - 1
        if found is None:
            continue
        whole += 1
        chosen, above = found.nodes(root=root)
        logits = plain.extend(
            torch.cat([given[0], torch.from_numpy(chosen)], 1),
            torch.cat([given[1], torch.from_numpy(above)], 1),
        )
        probs = torch.softmax(logits, -1)
        for row in range(2):
            for (level, number), children in found.children(row).items():
                node = root + (1 + sum(found.widths[1 : level + 1]) + number if level >= 0 else 0)
                for _, token, chance in zip(*children, strict=True):
                    assert chance == pytest.approx(float(probs[row, node, token]), rel=1e-3, abs=1e-6)
        # The keys that the call has left behind are those of its nodes.
        path = [*range(root + 1), root + 1]
        for backend in backends:
            backend.commit([path] * 2)
        one, other = (b.extend(torch.tensor([[4], [4]]), torch.tensor([[-1], [-1]])) for b in backends)
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)
        for backend in backends:
            backend.commit([[0]] * 2)
    assert whole
