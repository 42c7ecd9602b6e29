"""With mamba-ssm and causal-conv1d importable, transformers takes their CUDA kernels for CPU tensors too."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers.integrations import use_kernel_func_from_hub_with_fallback
from transformers.models.bamba import modeling_bamba
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

from draftwood import zoo
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.protocols import StateBackend
from tests.backends.recurrent_models import build

PACKAGES = {
    "causal_conv1d": ("causal_conv1d", ["causal_conv1d_fn", "causal_conv1d_update"]),
    "mamba_ssm.ops.triton.ssd_combined": (
        "mamba_ssm",
        ["mamba_split_conv1d_scan_combined", "mamba_chunk_scan_combined"],
    ),
    "mamba_ssm.ops.triton.selective_state_update": ("mamba_ssm", ["selective_state_update"]),
    "mamba_ssm.ops.selective_scan_interface": ("mamba_ssm", ["mamba_inner_fn", "selective_scan_fn"]),
}


def on_a_gpu_alone(*args: Any, **options: Any) -> Any:
    raise RuntimeError("Expected x.is_cuda() to be true, but got false.")


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of these names, and transformers' functions decorated anew, as it does when it is imported."""
    for name, (_, functions) in PACKAGES.items():
        parent = None
        for end in [*(i for i, letter in enumerate(name) if letter == "."), len(name)]:
            module = sys.modules.get(name[:end]) if parent is not None or end < len(name) else None
            if module is None or not hasattr(module, "fake"):
                module = ModuleType(name[:end])
                module.fake = True  # type: ignore[attr-defined]
                module.__path__ = []
                monkeypatch.setitem(sys.modules, name[:end], module)
            if parent is not None:
                setattr(parent, name[:end].rpartition(".")[2], module)
            parent = module
        for function in functions:
            setattr(parent, function, on_a_gpu_alone)
    of = {function: package for package, functions in PACKAGES.values() for function in functions}
    for modeling in (modeling_mamba, modeling_mamba2, modeling_bamba):
        for name, function in list(vars(modeling).items()):
            taken = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
            if (
                "implementation" in taken
                and taken.get("func_name", taken["package"])
                and taken["package"] in of.values()
            ):
                function_name = next(n for n in of if n in inspect.getsource(inspect.unwrap(function)))
                monkeypatch.setattr(
                    modeling,
                    name,
                    use_kernel_func_from_hub_with_fallback(function_name, of[function_name])(
                        inspect.unwrap(function)
                    ),
                )


def decoded(backend: StateBackend) -> torch.Tensor:
    backend.prefill([torch.tensor([1, 2, 3, 4]), torch.tensor([5])])
    first = backend.extend(torch.tensor([[6, 7, 8, 9]] * 2), torch.tensor([[-1, 0, 0, 2]] * 2))
    backend.commit([[0, 2, 3], [0, 1]])
    return torch.cat([first, backend.extend(torch.tensor([[3]] * 2), torch.tensor([[-1]] * 2))], 1)


def test_the_zoo_decodes_as_without_them(request: pytest.FixtureRequest) -> None:
    expected = decoded(load(zoo.load("mamba2-5m")))
    request.getfixturevalue("packages")
    model = zoo.load("mamba2-5m")
    with pytest.raises(RuntimeError, match="is_cuda"):
        model(torch.tensor([[1, 2, 3]]))
    assert torch.equal(decoded(load(model)), expected)


@pytest.mark.parametrize("name", ["mamba", "bamba"])
def test_other_layers(name: str, packages: None) -> None:
    model = build(name)
    with pytest.raises(RuntimeError, match="is_cuda"):
        model(torch.tensor([[1, 2, 3]]))
    tokens = decoded(load(model))
    assert tokens.isfinite().all()
    if name == "bamba":
        paths = load(model, attention="paths")
        assert isinstance(paths, UnrolledBackend)
        torch.testing.assert_close(decoded(paths), tokens, atol=1e-4, rtol=0)
