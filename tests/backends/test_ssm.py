"""Backends of recurrent models where law S on random calls does not look: errors, threads, memory, limits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import zoo
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.state_cost import allocations
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.structure.layers import count_layers
from draftwood.base.errors import InvalidDistribution, InvalidInput, OutOfMemory, UnsupportedModel
from draftwood.testing.backends import Mirror
from tests.backends.attention_models import plain
from tests.backends.recurrent_models import DELTA, HYBRIDS, PURES, RECURRENT, SMALL, VOCAB, Stepwise, build
from tests.backends.test_capabilities import check_features, passing_through, rounds
from tests.cache_names import cache_name
from tests.kernels.test_trees import shapes_made

KINDS = ["mamba2", "mamba", "bamba", "qwen3_5", "lfm2", "recurrent_gemma"]
"""One family for every kind of layer."""


def served(model: Any, **options: Any) -> Any:
    return (SSMBackend if model.config.model_type in PURES else HybridBackend)(model, **options)


@pytest.mark.parametrize("name", KINDS)
def test_the_model_itself_is_not_touched(name: str) -> None:
    model = build(name)
    modules = {path: (id(module), type(module)) for path, module in model.named_modules()}
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    expected = plain(model, [1, 2, 3])
    backend = served(model)
    Mirror(backend, Stepwise(model)).prefill([[1, 2, 3]])
    backend.extend(torch.tensor([[4, 5]]), torch.tensor([[-1, 0]]))
    assert {path: (id(module), type(module)) for path, module in model.named_modules()} == modules
    for path, module in model.named_modules():
        assert vars(module).keys() == attributes[path].keys()
    assert {id(weight) for weight in backend._module.parameters()} == {id(w) for w in model.parameters()}
    assert torch.equal(plain(model, [1, 2, 3]), expected)
    assert backend.model is model


@pytest.mark.parametrize("name", KINDS)
def test_two_backends_on_one_model_in_two_threads(name: str) -> None:
    model = build(name)
    oracle, failures = Stepwise(model), []
    mirrors = [Mirror(served(model), oracle) for _ in range(2)]
    for mirror in mirrors:
        rounds(mirror, seed=1)  # the oracle has seen all of it before the threads start
        mirror.release(None)

    def run(mirror: Mirror) -> None:
        try:
            for _ in range(3):
                rounds(mirror, seed=1)
                mirror.release(None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(mirror,)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), torch.OutOfMemoryError("no memory")])
@pytest.mark.parametrize("name", KINDS)
def test_a_pass_that_raises_leaves_the_state(
    name: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = served(build(name), chunk=4)
    mirror = Mirror(backend, Stepwise(backend.model))
    head = backend._module.get_output_embeddings()
    passes: list[int] = []

    def fails_later(*_: Any, **__: Any) -> None:
        # Behind all layers; of a prompt, in its second chunk.
        passes.append(1)
        if len(passes) > 1:
            raise failure
        return forward(*_, **__)  # type: ignore[no-any-return]

    forward = head.forward

    def failing(call: Callable[[], object], first: int) -> None:
        passes[:] = [1] * (1 - first)
        with monkeypatch.context() as patch:
            patch.setattr(head, "forward", fails_later)
            with pytest.raises(OutOfMemory if isinstance(failure, torch.OutOfMemoryError) else RuntimeError):
                call()

    failing(lambda: backend.prefill([torch.arange(7), torch.arange(2)]), 1)
    mirror.prefill([[1, 2, 3, 4, 5], [6]])
    failing(lambda: backend.prefill([torch.arange(7)]), 1)
    mirror.extend([[(1, -1), (2, 0)], [(3, -1)]])
    failing(lambda: backend.extend(torch.tensor([[4], [5]]), torch.tensor([[1], [0]])), 0)
    mirror.extend([[(4, 0), (5, 1)], [(6, 0)]])
    mirror.commit([[0, 1, 3], [0]])
    mirror.check_state()


@pytest.mark.parametrize("name", KINDS)
def test_a_commit_that_raises_leaves_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = served(build(name))
    mirror = Mirror(backend, Stepwise(backend.model))
    mirror.prefill([[1, 2, 3]])
    mirror.extend([[(1, -1), (2, 0), (3, 0)]])
    last = backend._states.layers[-1]

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(type(last), "replay_all", fails)
        with pytest.raises(RuntimeError, match="a bug"):
            backend.commit([[0, 2]])
    mirror.extend([[(4, 2)]])
    mirror.commit([[0, 2, 3]])
    mirror.check_state()


@pytest.mark.parametrize("name", [*KINDS, "qwen3_next", "zamba"])
def test_snapshots_give_the_same(name: str) -> None:
    model = build(name)
    backend, mirror = served(model, chunk=4), Mirror(served(model, chunk=4, snapshots=True), Stepwise(model))
    rounds(mirror, seed=2)
    mirror.release(None)
    other = Mirror(backend, mirror.logits_after)
    for both in (mirror, other):
        both.prefill([[1, 2, 3, 4, 5, 6], [7]])
        both.extend([[(1, -1), (2, 0), (3, 0), (4, 2)], [(5, -1)]])
        both.extend([[(6, 3), (7, 1)], [(8, 0), (9, 0)]])
        both.commit([[0, 2, 3, 4], [0, 2]])
    for kept, copied in zip(backend._states.layers, mirror.backend._states.layers, strict=True):  # type: ignore[attr-defined]
        assert torch.allclose(kept.committed, copied.committed, atol=1e-5, rtol=1e-4)
    mirror.check_state()


def test_paths_serve_where_transformers_goes_on_from_a_state() -> None:
    assert isinstance(load(build("bamba"), attention="paths"), UnrolledBackend)
    # Its scan over many tokens begins anew.
    with pytest.raises(
        UnsupportedModel, match=r'Backend does not decode as MambaForCausalLM .*attention="auto"'
    ):
        load(build("mamba"), attention="paths")


def test_layers_of_an_unknown_kind_are_named() -> None:
    config = hf.MiniMaxConfig(**SMALL, head_dim=8, num_local_experts=2, layer_types=["linear_attention"] * 2)
    model = hf.MiniMaxForCausalLM(config).eval()
    with pytest.raises(
        UnsupportedModel, match=r"Layer 0 of MiniMaxForCausalLM is recurrent, .*MiniMaxLightningAttention"
    ):
        load(model)
    model = build("bamba")
    known = type(model.model.layers[0].mamba)
    model.model.layers[0].mamba.__class__ = type("FreshMixer", (torch.nn.Module,), dict(vars(known)))
    with pytest.raises(UnsupportedModel, match=r"parts \(.*FreshMixer.*\) is known; supported are"):
        HybridBackend(model)
    # But a path in every row serves it.
    assert isinstance(load(model), UnrolledBackend)
    model.model.others = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])
    assert count_layers(model) == 0
    with pytest.raises(UnsupportedModel, match="Layer 0 of BambaForCausalLM is recurrent"):
        HybridBackend(model)


def test_a_backend_that_does_not_fit() -> None:
    with pytest.raises(UnsupportedModel, match=r"attention layers \(full_attention\) too; use HybridBackend"):
        SSMBackend(build("bamba"))
    with pytest.raises(
        UnsupportedModel, match="LlamaForCausalLM keeps recurrent states in layers that are not"
    ):
        HybridBackend(hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)).eval())


@pytest.mark.parametrize("name", KINDS)
def test_the_models_own_decoding_in_between_changes_nothing(name: str) -> None:
    model = build(name)
    mirror = Mirror(served(model), Stepwise(build(name)))
    mirror.prefill([[1, 2, 3]])
    mirror.extend([[(4, -1), (5, 0), (6, 0)]])
    model.generate(torch.tensor([[7, 8]]), max_new_tokens=3, do_sample=False)
    mirror.commit([[0, 2]])
    model.train()
    with pytest.raises(InvalidInput, match="was switched to training mode while rows were held"):
        mirror.backend.extend(torch.tensor([[4]]), torch.tensor([[-1]]))
    model.eval()
    mirror.extend([[(4, -1)]])
    mirror.check_state()


@pytest.mark.parametrize("name", KINDS)
def test_single_precision_parameters_in_a_half_precision_model(name: str) -> None:
    model = build(name, torch.bfloat16)
    for module in model.modules():
        for own in ("A_log", "D", "dt_bias"):
            if hasattr(module, own):
                getattr(module, own).data = getattr(module, own).data.float()
    backend = load(model)
    backend.prefill([torch.arange(7)])
    logits = backend.extend(torch.tensor([[3, 4]]), torch.tensor([[-1, 0]]))[0, -1]
    expected = plain(build(name), [*range(7), 3, 4])
    assert (logits.float() - expected).abs().max() < 0.2 * expected.std() + 0.2


def generated(model: Any, prompt: list[int], path: list[int]) -> torch.Tensor:
    """Returns logits after `prompt`, read at once, and after every token of `path`, read one by one."""
    cache: Any = hf.DynamicCache(config=model.config)
    options = {cache_name(model): cache}
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    logits = []
    with torch.no_grad():
        for start, tokens in [(0, prompt), *((len(prompt) + i, [token]) for i, token in enumerate(path))]:
            if takes_positions:
                options["position_ids"] = torch.arange(start, start + len(tokens)).unsqueeze(0)
            logits.append(model(torch.tensor([tokens]), use_cache=True, **options).logits[0, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("name", ["zamba2", "nemotron_h", "mamba2"])
def test_the_step_is_clamped_in_prompts_alone(name: str) -> None:
    model = build(name)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.5, 0.6)
    prompts, backend = [[1, 2, 3, 4, 5, 6], [9], [7, 8, 9]], load(model)
    assert type(backend) is type(served(model))
    backend.prefill([torch.tensor(prompt[:-1], dtype=torch.int64) for prompt in prompts])
    roots = torch.tensor([prompt[-1:] for prompt in prompts])
    tree = torch.cat([roots, torch.tensor([[10, 11, 12]] * 3)], 1)
    first = backend.extend(tree, torch.tensor([[-1, 0, 0, 2]] * 3))
    backend.release([1])
    backend.commit([[0, 2, 3], [0, 1]])
    second = backend.extend(torch.tensor([[13, 14]] * 2), torch.tensor([[-1, 0]] * 2))
    for row, prompt in enumerate(prompts):
        expected = generated(model, prompt, [11, 12])
        torch.testing.assert_close(first[row, [0, 2, 3]], expected, atol=1e-4, rtol=0)
        assert (plain(model, [*prompt, 11, 12]) - expected[-1]).abs().max() > 1e-2
    for row, (prompt, path) in enumerate(zip([prompts[0], prompts[2]], [[11, 12], [10]], strict=True)):
        expected = generated(model, prompt, [*path, 13, 14])[-2:]
        torch.testing.assert_close(second[row], expected, atol=1e-4, rtol=0)
    with pytest.raises(UnsupportedModel, match="clamps the step of its scans where it reads several tokens"):
        load(model, attention="paths")


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1", "nemotron_h", "bamba", "qwen3_5", "lfm2"])
def test_layers_left_out(name: str) -> None:
    model = build(name)
    backend = load(model)
    for layer in range(backend.skippable_layers):
        if name == "nemotron_h" and layer == 1:
            # Its forward asks an attention layer how much the cache holds, and this is the only one.
            with pytest.raises(UnsupportedModel, match="does not work without the layers \\[1\\]"):
                backend.without_layers([layer])
            continue
        smaller, oracle = backend.without_layers([layer]), passing_through(model, [layer])
        assert smaller.weight_bytes < backend.weight_bytes
        rounds(Mirror(smaller, lambda tokens, o=oracle: plain(o, tokens)), seed=layer)  # type: ignore[misc]
    rounds(Mirror(backend, Stepwise(model)), seed=9)


@pytest.mark.parametrize("name", ["mamba2", "bamba", "qwen3_next", "recurrent_gemma"])
def test_features(name: str) -> None:
    check_features(served(build(name), chunk=3), build(name), seed=4)


@pytest.mark.parametrize("name", KINDS)
def test_states_of_half_precision_models_are_single(name: str) -> None:
    model = build(name, torch.bfloat16)
    backend: Any = load(model)
    text = list(range(20))
    backend.prefill([torch.tensor(text[:11])])
    logits = backend.extend(torch.tensor([text[11:]]), torch.arange(-1, 8).unsqueeze(0))[0]
    backend.commit([list(range(9))])
    again = backend.extend(torch.tensor([[3]]), torch.tensor([[-1]]))[0, 0]
    expected = plain(build(name), [*text, 3])
    assert (logits[-1].float() - plain(build(name), text)).abs().max() < 0.2 * expected.std() + 0.2
    assert (again.float() - expected).abs().max() < 0.2 * expected.std() + 0.2
    scans = [layer for layer in backend._states.layers if type(layer).__name__ != "ConvState"]
    assert all(layer.committed.dtype == torch.float32 for layer in scans)
    assert scans or name == "lfm2"


def test_a_state_that_overflows_names_its_layer() -> None:
    model = build("bamba", torch.float16)
    backend: Any = HybridBackend(model)
    backend.prefill([torch.arange(3)])
    backend.extend(torch.tensor([[5]]), torch.tensor([[-1]]))
    before = [layer.committed for layer in backend._states.layers]
    with torch.no_grad():
        model.model.layers[0].mamba.conv1d.bias.fill_(6e4)
        model.model.layers[0].mamba.conv1d.weight.fill_(6e4)
    backend.extend(torch.tensor([[7]]), torch.tensor([[0]]))
    with pytest.raises(
        InvalidDistribution, match=r"state of model\.layers\.0\.mamba is no longer finite in float16"
    ):
        backend.commit([[0, 1]])
    assert all(layer.committed is state for layer, state in zip(backend._states.layers, before, strict=True))
    backend.release()
    with pytest.raises(InvalidDistribution, match="load the model in bfloat16 or float32"):
        backend.prefill([torch.arange(9)])
    assert backend.lengths == []


@pytest.mark.parametrize("name", ["mamba2", "bamba", "qwen3_next", "qwen3_5"])
def test_no_node_has_a_state(name: str) -> None:
    nodes, config = 32, RECURRENT[name]()
    if name in ("qwen3_next", "qwen3_5"):
        wider = DELTA | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
        config = type(config)(**config.to_dict() | wider)
    model = hf.AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    backend: Any = served(model)
    backend.prefill([torch.arange(5)])
    # A chain, whose path is the longest.
    tokens, parents = torch.arange(nodes).unsqueeze(0) % VOCAB, torch.arange(-1, nodes - 1).unsqueeze(0)

    def call() -> None:
        for start in (0, nodes // 2):
            half = slice(start, start + nodes // 2)
            backend.extend(tokens[:, half], parents[:, half])
        backend.commit([list(range(nodes))])

    made = shapes_made(call)
    (state,) = {layer.committed.shape[1:] for layer in backend._states.layers if layer.committed.dim() == 4}
    assert state in {shape[1:] for shape in made}
    assert max(torch.Size(shape).numel() for shape in made) < nodes // 2 * state.numel()


def test_a_round_takes_little_beside_snapshots() -> None:
    nodes, model = 64, zoo.load("mamba2-5m")
    tokens = torch.arange(nodes).unsqueeze(0)
    parents = torch.tensor([[(node - 1) // 2 if node else -1 for node in range(nodes)]])

    def besides(backend: Any) -> float:
        """Returns a round's extra memory, without logits, over that of a state for every node."""

        def one_round(n: int) -> None:
            backend.extend(tokens[:, :n], parents[:, :n])
            backend.commit([[0]])

        backend.prefill([torch.arange(100)])
        one_round(nodes)
        more = allocations(lambda: one_round(nodes))[1] - allocations(lambda: one_round(1))[1]
        state = sum(layer.committed.numel() * 4 for layer in backend._states.layers)
        return (more - nodes * backend.vocab_size * 4) / (nodes * state)

    assert 0 < besides(SSMBackend(model)) < 0.1
    assert besides(SSMBackend(model, snapshots=True)) > 1


def test_every_kind_is_among_the_families() -> None:
    assert set(KINDS) <= set(PURES | HYBRIDS)
