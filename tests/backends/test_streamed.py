"""Weights that accelerate brings for every call: what is computed with them, and what is read beforehand."""

import copy
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor

from draftwood import InvalidInput, StateBackend, UnsupportedModel, load
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.weights.streamed import ModuleWeights, Part, Reader, streamed_modules
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import VOCAB, plain, tiny
from tests.backends.recurrent_models import PURES, RECURRENT, Stepwise, build
from tests.thorough import marks_unless

CPU = torch.device("cpu")
NAMES = ["llama", *RECURRENT]
OFTEN = [("llama", "by parts, from the disk"), ("bamba", "by layers"), ("mamba", "by parts, from the disk")]


def made(name: str) -> Any:
    return tiny() if name == "llama" else build(name)


def offloaded(name: str, how: str, folder: Path) -> Any:
    """A model whose weights are elsewhere between the calls of its modules."""
    model = made(name)
    if how == "by layers":
        layers = max((part for part in model.modules() if isinstance(part, torch.nn.ModuleList)), key=len)
        kinds = {type(layer).__name__ for layer in layers}
        return accelerate.cpu_offload(model, execution_device=CPU, preload_module_classes=sorted(kinds))
    return accelerate.disk_offload(model, str(folder), execution_device=CPU)


@cache
def oracle(name: str) -> Any:
    """One for all tests of a model, so that what it has decoded is kept."""
    model = made(name)
    return (lambda tokens: plain(model, tokens)) if name == "llama" else Stepwise(model)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def backend(name: str, how: str) -> StateBackend:
        kind = TransformerBackend if name == "llama" else SSMBackend if name in PURES else HybridBackend
        return kind(offloaded(name, how, tmp_path_factory.mktemp("weights")))

    return backend


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=marks_unless((name, how) in OFTEN))
        for name in NAMES
        for how in ("by parts, from the disk", "by layers")
    ],
)
class TestLawS(StateBackendTests):
    vocab_size = VOCAB
    examples = 3
    longest = 40

    @pytest.fixture(autouse=True)
    def _model(self, name: str, how: str, backends: Any) -> None:
        self.backend, self.logits_after = backends(name, how), oracle(name)  # type: ignore[method-assign]

    def make_backend(self) -> StateBackend:
        self.backend.release()
        return self.backend


@pytest.mark.parametrize("name", ["llama", "bamba"])
def test_what_is_streamed_stays_elsewhere_and_is_read_in_time(name: str, tmp_path: Path) -> None:
    backend = load(offloaded(name, "by parts, from the disk", tmp_path))
    assert type(backend) is (TransformerBackend if name == "llama" else HybridBackend)
    module = backend._module
    assert all(weight.device.type == "meta" for weight in module.parameters())
    maps = [hook.weights_map for _, hook in streamed_modules(module)]
    assert all(isinstance(one, ModuleWeights) for one in maps)
    (reader,) = {one.reader for one in maps}
    late: list[str] = []
    for part in reader.parts:
        noted = Noted(part.source, late)
        object.__setattr__(part, "source", noted)
    backend.prefill([torch.tensor([1, 2, 3])])
    tokens, parents = torch.tensor([[4, 5]]), torch.tensor([[-1, 0]])
    backend.extend(tokens, parents)
    late.clear()
    backend.extend(tokens, torch.tensor([[1, 2]]))
    assert late == []
    assert all(weight.device.type == "meta" for weight in module.parameters())
    backend.release()


class Noted(Mapping[str, Tensor]):
    """Weights, and which of them were read while the model waited for them."""

    def __init__(self, source: Mapping[str, Tensor], late: list[str]) -> None:
        self.source, self.late = source, late

    def __getitem__(self, name: str) -> Tensor:
        if not threading.current_thread().name.startswith("weights"):
            self.late.append(name)
        return self.source[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)


class Numbered(Mapping[str, Tensor]):
    """One weight, `w`, and how often it was read."""

    def __init__(self, number: int, fails: Exception | None = None) -> None:
        self.number, self.fails, self.reads = number, fails, 0

    def __getitem__(self, name: str) -> Tensor:
        self.reads += 1
        if self.fails is not None:
            raise self.fails
        return torch.tensor(self.number)

    def __iter__(self) -> Iterator[str]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


def reader_of(sources: list[Numbered], ahead: int) -> Reader:
    return Reader([Part(source, ["w"], None) for source in sources], [1] * len(sources), ahead)


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_an_order_is_foreseen_and_any_other_is_served(ahead: int) -> None:
    sources = [Numbered(number) for number in range(4)]
    reader = reader_of(sources, ahead)
    for number in [0, 1, 2, 3] * 3 + [2, 0, 0, 1, 3, 1, 0]:
        assert int(reader.take(number, "w")) == number
    again = [source.reads for source in sources]
    for number in [0, 1, 2, 3] * 20:
        assert int(reader.take(number, "w")) == number
    reader._worker.shutdown()
    # Each is read once a turn, but for what was ahead before and is so at the end, and for what the new order
    # made useless.
    for before, source in zip(again, sources, strict=True):
        assert 19 <= source.reads - before <= 25


def test_no_more_is_read_beforehand_than_fits() -> None:
    sources = [Numbered(number) for number in range(6)]
    reader = reader_of(sources, ahead=2)
    for number in [*range(6), 0]:
        reader.take(number, "w")
    reader._worker.shutdown()
    # The first is called again, and two more wait.
    assert [source.reads for source in sources] == [2, 2, 2, 1, 1, 1]


def test_a_file_that_cannot_be_read_is_one_sentence() -> None:
    sources = [Numbered(number) for number in range(3)]
    reader = reader_of(sources, ahead=1)
    for number in (0, 1, 2):
        reader.take(number, "w")
    sources[1].fails = FileNotFoundError(2, "No such file", "layer.dat")
    reader.take(0, "w")
    with pytest.raises(InvalidInput, match=r"could not be read .*layer\.dat.*; restore the folder"):
        reader.take(1, "w")


def test_a_second_model_reads_for_itself(tmp_path: Path) -> None:
    model = offloaded("llama", "by parts, from the disk", tmp_path)
    TransformerBackend(model)
    second = copy.deepcopy(model)
    assert not any(isinstance(hook.weights_map, ModuleWeights) for _, hook in streamed_modules(second))
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(second(ids).logits, model(ids).logits)


def test_weights_that_nothing_brings_are_refused() -> None:
    with torch.device("meta"):
        model = build("bamba")
    with pytest.raises(UnsupportedModel, match=r"Weights of \w+ are on the device meta .* load the model"):
        HybridBackend(model.eval())
