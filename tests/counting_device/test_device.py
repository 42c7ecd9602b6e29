"""The stand-in itself: what it counts, what it refuses, and that its numbers are the CPU's."""

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from draftwood import SamplingParams
from draftwood.kernels.tree_attention.dispatch import _processors
from tests.counting_device.counts import Kind
from tests.counting_device.device import CountingDevice, counting_device
from tests.counting_device.guard import guard_address
from tests.counting_device.models import to_device
from tests.counting_device.tensor import CUDA, DeviceTensor

pytestmark = pytest.mark.triton


def on_device(tensor: Tensor) -> Any:
    return DeviceTensor(tensor)


def six() -> Any:
    return on_device(torch.arange(6.0))


def counted(device: CountingDevice, call: Callable[[], Any]) -> dict[Kind, int]:
    """Returns the requests of `call` to the device, by kind."""
    before = {kind: device.counts.of(kind) for kind in Kind}
    call()
    found = {kind: device.counts.of(kind) - before[kind] for kind in Kind}
    return {kind: count for kind, count in found.items() if count}


def assign(tensor: Any, index: Any, value: Any) -> None:
    tensor[index] = value


WAITS: dict[str, Callable[[Any], Any]] = {
    "item": lambda t: t[2].item(),
    "float": lambda t: float(t[2]),
    "int": lambda t: int(t[2]),
    "bool": lambda t: bool(t[2]),
    "index": lambda t: [0, 1, 2][t[2].long()],
    "if": lambda t: 1 if t[2] > 1 else 0,
    "in": lambda t: 3.0 in t,
    "format": lambda t: f"{t[2]:.2f}",
    "print": lambda t: str(t),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "to another dtype": lambda t: t.to("cpu", torch.float64),
    "copy to the CPU": lambda t: torch.zeros(6).copy_(t),
    "nonzero": lambda t: t.nonzero(),
    "where of one": lambda t: torch.where(t > 2),
    "argwhere": lambda t: torch.argwhere(t),
    "boolean index": lambda t: t[t > 2],
    "boolean index of several": lambda t: t.view(2, 3)[t.view(2, 3) > 2],
    "boolean assignment": lambda t: assign(t, t > 2, torch.zeros(3, device="cuda")),
    "boolean assignment of one there": lambda t: assign(t, t > 2, torch.zeros(1, device="cuda")),
    "masked_select": lambda t: t.masked_select(t > 2),
    "equal": lambda t: torch.equal(t, t),
    "allclose": lambda t: torch.allclose(t, t),
    "unique": lambda t: t.unique(),
    "unique_consecutive": lambda t: t.unique_consecutive(),
    "repeat_interleave": lambda t: t.repeat_interleave(t.long()),
    "bincount": lambda t: t.long().bincount(),
    "one_hot": lambda t: functional.one_hot(t.long()),
    "arange": lambda t: torch.arange(t[2], device="cuda"),
    "synchronize": lambda t: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("what", WAITS)
def test_every_wait_is_counted_once(device: CountingDevice, what: str) -> None:
    tensor = six()
    found = counted(device, lambda: WAITS[what](tensor))
    assert found.get(Kind.WAIT) == 1
    assert Kind.BLOCKING_COPY not in found


GOES_ON: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda t: t * 2 + t.sum(),
    "a number of the CPU": lambda t: torch.where(t > 2, t, torch.tensor(0.0)) * torch.tensor(2.0),
    "indices there": lambda t: t[t.long()],
    "one number under a mask": lambda t: assign(t, t > 2, 0.0),
    "masked_fill": lambda t: t.masked_fill(t > 2, torch.tensor(0.0)),
    "repeat_interleave of known size": lambda t: t.repeat_interleave(t.long(), output_size=15),
    "one_hot of known size": lambda t: functional.one_hot(t.long(), 10),
    "scatter": lambda t: t.scatter(0, t.long(), t),
    "search": lambda t: torch.searchsorted(t, t),
    "sort": lambda t: t.sort().indices,
    "padding": lambda t: functional.pad(t, (1, 1)),
    "rows of several lengths": lambda t: torch.nn.utils.rnn.pad_sequence([t, t[:3]]),
    "iteration": lambda t: [one + 1 for one in t],
    "random numbers": lambda t: torch.rand(3, device="cuda"),
    "dtypes": lambda t: t.bfloat16().to(torch.int64).bool(),
    "nothing to read": lambda t: (t[:0].tolist(), t[:0].cpu()),
}


@pytest.mark.parametrize("what", GOES_ON)
def test_what_needs_no_result_waits_for_nothing(device: CountingDevice, what: str) -> None:
    tensor = six()
    found = counted(device, lambda: GOES_ON[what](tensor))
    assert found.keys() <= {Kind.LAUNCH}
    assert (Kind.LAUNCH in found) == (what != "nothing to read")


COPIES: dict[str, tuple[Callable[[Any], Any], Kind, int]] = {
    "to": (lambda t: torch.ones(3).to("cuda"), Kind.BLOCKING_COPY, 1),
    "to a device with a number": (lambda t: torch.ones(3).to("cuda:0"), Kind.BLOCKING_COPY, 1),
    "cuda": (lambda t: torch.ones(3).cuda(), Kind.BLOCKING_COPY, 1),
    "another dtype": (lambda t: torch.ones(3).to("cuda", torch.float64), Kind.BLOCKING_COPY, 1),
    "numbers": (lambda t: torch.tensor([1, 2], device="cuda"), Kind.BLOCKING_COPY, 1),
    "numbers like others": (lambda t: t.new_tensor([1.0]), Kind.BLOCKING_COPY, 1),
    "copy_": (lambda t: t.copy_(torch.ones(6)), Kind.BLOCKING_COPY, 1),
    "one element": (lambda t: assign(t, 0, 5.0), Kind.BLOCKING_COPY, 1),
    "indices": (lambda t: t[torch.tensor([1, 2])], Kind.BLOCKING_COPY, 1),
    "two lists of indices": (lambda t: t.view(2, 3)[[0, 1], [1, 2]], Kind.BLOCKING_COPY, 2),
    "a mask of the CPU": (lambda t: t[torch.arange(6) > 2], Kind.BLOCKING_COPY, 1),
    "assignment": (lambda t: assign(t, torch.tensor([1, 2]), t[:2] * 1), Kind.BLOCKING_COPY, 1),
    "assignment of a number": (lambda t: assign(t, torch.tensor([1, 2]), 5.0), Kind.BLOCKING_COPY, 2),
    "to, later": (lambda t: torch.ones(3).to("cuda", non_blocking=True), Kind.COPY, 1),
    "pinned": (lambda t: torch.ones(3).pin_memory().to("cuda", non_blocking=True), Kind.COPY, 1),
    "copy_, later": (lambda t: t.copy_(torch.ones(6), non_blocking=True), Kind.COPY, 1),
    "back, later": (lambda t: t.to("cpu", non_blocking=True), Kind.COPY_BACK, 1),
    "back by copy_, later": (lambda t: torch.ones(6).copy_(t, non_blocking=True), Kind.COPY_BACK, 1),
}


@pytest.mark.parametrize("what", COPIES)
def test_every_copy_is_counted_and_whether_it_blocks(device: CountingDevice, what: str) -> None:
    tensor = six()
    call, kind, times = COPIES[what]
    found = counted(device, lambda: call(tensor))
    found.pop(Kind.LAUNCH, None)
    assert found == {kind: times}


LAUNCHES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "views": (lambda t: t.view(2, 3).T[1:].unsqueeze(0).expand(4, -1, -1).detach().unbind(0), 0),
    "allocation": (lambda t: (torch.empty(3, device="cuda"), t.new_empty(2), torch.empty_like(t)), 0),
    "nothing": (lambda t: t[:0] * 2, 0),
    "shapes": (lambda t: (t.shape, t.stride(), t.numel(), t.is_contiguous(), t.data_ptr()), 0),
    "where it is": (lambda t: t.to("cuda:0").contiguous().float(), 0),
    "one": (lambda t: t + 1, 1),
    "two": (lambda t: (t + 1).softmax(-1), 2),
    "a copy": (lambda t: t.view(2, 3).T.contiguous(), 1),
    "in place": (lambda t: t.add_(1).clamp_(max=3), 2),
    "zeros": (lambda t: torch.zeros(3, device="cuda"), 1),
    "linear": (lambda t: functional.linear(t.view(2, 3), t.view(2, 3), t[:2]), 1),
    "copy and fill": (lambda t: t.masked_fill(torch.ones(6, dtype=torch.bool, device="cuda"), 1), 3),
    "a mask is looked through first": (lambda t: t[torch.ones(6, dtype=torch.bool, device="cuda")], 3),
    "cat": (lambda t: torch.cat([t, t, t]), 1),
}


@pytest.mark.parametrize("what", LAUNCHES)
def test_kernels_are_counted_and_views_are_none(device: CountingDevice, what: str) -> None:
    tensor = six()
    call, times = LAUNCHES[what]
    assert counted(device, lambda: call(tensor)).get(Kind.LAUNCH, 0) == times


def mean(query: Any, mask: Any = None, **options: Any) -> Any:
    return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask, **options)


@pytest.mark.parametrize(("mask", "launches"), [(None, 1), (torch.float32, 1), (torch.bool, 4)])
def test_attention_is_one_kernel(device: CountingDevice, mask: torch.dtype | None, launches: int) -> None:
    query = torch.randn(1, 2, 3, 16, generator=torch.Generator().manual_seed(1))
    shown = None if mask is None else torch.eye(3, dtype=mask)
    wanted = mean(query, shown)
    query, shown = on_device(query), None if shown is None else on_device(shown)
    found = list[Any]()
    assert counted(device, lambda: found.append(mean(query, shown))) == {Kind.LAUNCH: launches}
    torch.testing.assert_close(found[0].cpu(), wanted)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "sum": (lambda t: t + torch.ones(6), RuntimeError, "same device"),
    "sum of one": (lambda t: t + torch.ones(1), RuntimeError, "same device"),
    "sum on the CPU": (lambda t: torch.ones(6) + t[0], RuntimeError, "same device"),
    "written on the CPU": (lambda t: torch.tensor(1.0).add_(t[0]), RuntimeError, "same device"),
    "where": (lambda t: torch.where(t > 1, t, torch.zeros(6)), RuntimeError, "same device"),
    "cat": (lambda t: torch.cat([t, torch.ones(1)]), RuntimeError, "same device"),
    "stack of numbers": (lambda t: torch.stack([t[0], torch.tensor(1.0)]), RuntimeError, "same device"),
    "product": (lambda t: t.view(2, 3) @ torch.ones(3, 2), RuntimeError, "same device"),
    "gather": (lambda t: t.gather(0, torch.tensor([1])), RuntimeError, "same device"),
    "index_select": (lambda t: t.index_select(0, torch.tensor([1])), RuntimeError, "same device"),
    "embedding": (
        lambda t: functional.embedding(torch.tensor([1]), t.view(2, 3)),
        RuntimeError,
        "same device",
    ),
    "assigned values": (lambda t: assign(t, t.long()[:2], torch.ones(2)), RuntimeError, "same device"),
    "attention": (lambda t: mean(t.view(1, 6), torch.ones(1, 1)), RuntimeError, "same device"),
    "indices there": (lambda t: torch.ones(6)[t.long()], RuntimeError, "indices should be either on cpu"),
    "product of two dtypes": (lambda t: t.view(2, 3) @ t.view(3, 2).bfloat16(), RuntimeError, "same dtype"),
    "product of integers": (
        lambda t: t.long().view(2, 3) @ t.long().view(3, 2),
        RuntimeError,
        "not implemented",
    ),
    "dot of integers": (lambda t: t.long() @ t.long(), RuntimeError, "not implemented"),
    "linear": (lambda t: functional.linear(t, t.view(1, 6).bfloat16()), RuntimeError, "same dtype"),
    "scatter of two dtypes": (lambda t: t.scatter(0, t.long(), t.bfloat16()), RuntimeError, "dtype"),
    "assignment of two dtypes": (lambda t: assign(t, t.long(), t.bfloat16()), RuntimeError, "dtypes"),
    "generator": (lambda t: t.uniform_(generator=torch.Generator()), RuntimeError, "'cuda' device type"),
    "numpy": (lambda t: t.numpy(), TypeError, "can't convert cuda:0"),
    "array": (lambda t: np.asarray(t), TypeError, "can't convert cuda:0"),
    "another device": (lambda t: t.to("cuda:1"), RuntimeError, "invalid device ordinal"),
    "another shape in place": (lambda t: t.unsqueeze_(0), NotImplementedError, "changes the shape"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cuda_refuses_is_refused(device: CountingDevice, what: str) -> None:
    call, error, message = REFUSED[what]
    with pytest.raises(error, match=re.escape(message)):
        call(six())


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda t: t.float().softmax(-1),
    "sums": lambda t: (t.sum(), t.cumsum(0), t.float().mean()),
    "order": lambda t: (t.sort(descending=True), t.topk(3), t.argmax()),
    "comparison": lambda t: (t > 2, (t > 2).any(), t.isfinite() & (t != 3)),
    "promotion": lambda t: (
        torch.cat([t, t.double()]),
        torch.where(t > 2, t, t.double()),
        t + t.long() + 0.5,
    ),
    "indexing": lambda t: (t[[1, 0]], t[t > 2], t[2:], t[None, :, None], t[..., -1]),
    "views share memory": lambda t: (t.view(2, 3)[1].fill_(7), t),
    "in place": lambda t: (t.mul_(2), t),
    "assignment": lambda t: (assign(t, slice(1, 3), 9), assign(t, [0], 8), t),
    "shapes": lambda t: (t.view(2, 3).T.contiguous(), t.repeat(2), t.view(3, 2).flip(0)),
    "scatter": lambda t: t.new_zeros(6).scatter_(0, torch.tensor([3, 1]).to(t.device), t[:2]),
    "bits": lambda t: (t.int() << 1) | 1,
    "products": lambda t: t.float().view(2, 3) @ t.float().view(3, 2),
    "numbers": lambda t: (t.max().item(), t.tolist(), int(t[1]), len(t)),
    "new": lambda t: (t.new_full((2,), 3), torch.full_like(t, 2), torch.arange(3, device=t.device)),
    "bits of another dtype": lambda t: t.float().view(torch.int32),
}


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, value.cpu().tolist())
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("what", COMPUTED)
def test_numbers_are_those_of_the_cpu(device: CountingDevice, what: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor([3, 1, 4, 1, 5, 2], dtype=dtype)
    wanted, found = (COMPUTED[what](one) for one in (numbers.clone(), on_device(numbers)))
    assert plain(found) == plain(wanted)


def test_it_says_that_it_is_cuda(device: CountingDevice) -> None:
    for tensor in (torch.ones(2, device="cuda"), torch.ones(2).cuda(), six()[1:] * 2):
        assert tensor.device == CUDA
        assert tensor.is_cuda
        assert isinstance(tensor, DeviceTensor)
    assert isinstance(six().cpu() + 1, Tensor)
    assert not isinstance(six().cpu() + 1, DeviceTensor)
    _processors.cache_clear()
    assert _processors(CUDA) == 132


def test_inference_mode_counts_the_same(device: CountingDevice) -> None:
    def call() -> None:
        query = torch.ones(1, 2, 3, 16, device="cuda")
        assert bool((functional.linear(query, query[0, 0]) @ query.new_ones(3, 2)).sum() > 0)
        mean(query)

    plainly = counted(device, call)
    with torch.inference_mode():
        assert counted(device, call) == plainly
        tensor = torch.ones(2, device="cuda")
        assert tensor.add_(1) is tensor


def test_events_have_their_phase_and_their_line(device: CountingDevice) -> None:
    logits = torch.zeros(2, 5, device="cuda")
    with device.phase("outer"), device.phase("inner"), device.phase("inner"):
        SamplingParams(temperature=0.8).distribution(logits)
    events = [event for event in device.counts.events if event.kind == Kind.WAIT]
    assert {event.phase for event in events} == {("outer", "inner")}
    assert {event.line.split(":")[0] for event in events} == {"framework/distributions/sampling.py"}
    assert device.counts.of(Kind.WAIT, phase="outer") == device.counts.of(Kind.WAIT) > 0
    assert device.counts.by_phase()[("outer", "inner")].of(Kind.WAIT) == device.counts.of(Kind.WAIT)
    line, times = device.counts.lines(Kind.WAIT)[0]
    assert re.fullmatch(r"wait \(item\) at framework/distributions/sampling.py:\d+", line)
    assert times == 1


def test_passes_of_modules_are_told_apart(device: CountingDevice) -> None:
    module = to_device(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()))
    device.counts.events.clear()
    module(torch.ones(1, 3, device="cuda")).add_(1)
    assert device.counts.of(Kind.LAUNCH, in_pass=True) == 2
    assert device.counts.of(Kind.LAUNCH, in_pass=False) == 2
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.ones(1, 3))
    torch.ones(1, device="cuda")  # a pass that failed has ended too
    assert device.counts.of(Kind.LAUNCH, in_pass=False) == 3


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("none", None)
        self.aside = torch.tensor(1.0)


def test_a_model_moves_with_its_tied_weights(device: CountingDevice) -> None:
    model = to_device(Tied())
    assert model.head.weight is model.embedding.weight
    assert isinstance(model.head.weight, torch.nn.Parameter)
    assert {str(one.device) for one in (*model.parameters(), *model.buffers())} == {"cuda:0"}
    assert model.aside.device.type == "cpu"  # as `Module.to` leaves it
    assert dict(model.named_parameters()).keys() == {"embedding.weight"}
    assert to_device(model).head.weight is model.head.weight
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight is not model.head.weight
    logits = model.head(model.embedding(torch.tensor([1, 2], device="cuda")))
    assert logits.shape == (2, 5)
    with torch.no_grad():
        twin.head.weight.fill_(0)
    assert bool(model.head.weight.any())


def test_one_device_at_a_time_and_none_outside() -> None:
    without = None if torch.version.cuda is None else guard_address()
    before = without, torch._C._only_lift_cpu_tensors(), torch.cuda.synchronize
    with counting_device() as device:
        tensor = six()
        with pytest.raises(RuntimeError, match="running already"), counting_device():
            pass
        assert counted(device, lambda: tensor + 1) == {Kind.LAUNCH: 1}
    assert (guard_address(), torch._C._only_lift_cpu_tensors(), torch.cuda.synchronize) == before
    with pytest.raises(RuntimeError, match="outside of"):
        tensor + 1
    with pytest.raises((AssertionError, RuntimeError), match="CUDA|NVIDIA driver"):
        torch.ones(1, device="cuda")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1).to("cuda")
    assert "DeviceTensor" in repr(tensor)
    with counting_device() as device:
        assert counted(device, lambda: tensor + 1) == {Kind.LAUNCH: 1}
