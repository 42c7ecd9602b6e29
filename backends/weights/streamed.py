"""Weights that accelerate streams to where a model runs: the next ones are read while these compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput

PAGE = 4096
"""Bytes of a page of memory, or a part of one."""


def streamed_modules(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Any]]:
    """The modules whose weights are brought for every call of theirs, and accelerate's hook of each."""
    hooks = ((module, getattr(module, "_hf_hook", None)) for module in model.modules())
    return [
        (module, one)
        for module, hook in hooks
        for one in getattr(hook, "hooks", [hook])  # several hooks of a module are one that has them
        if getattr(one, "offload", False) and getattr(one, "weights_map", None) is not None
    ]


def weights_maps(model: torch.nn.Module) -> list[Any]:
    """Returns the maps that streamed weights are read from. A copy of the model's structure shares them."""
    return [hook.weights_map for _, hook in streamed_modules(model)]


def streamed_as_one(module: torch.nn.Module, inside: str) -> Any:
    """A hook that brings all weights in and below `module` at once; None where none is streamed.

    The hooks that did so part by part are taken off: whoever reads the weights without calling the parts,
    as our mixers do, would find them missing.

    Args:
        module: of a copy of a model; its hooks go.
        inside: the name that `module` has in the one that is to be hooked.
    """
    from accelerate.hooks import AlignDevicesHook

    sources: dict[str, tuple[Mapping[str, Tensor], str]] = {}
    last = None
    parts = {id(part): name for name, part in module.named_modules()}
    for part, hook in streamed_modules(module):
        for name in _names(part, hook):
            full = ".".join(filter(None, (inside, parts[id(part)], name)))
            sources[full] = (hook.weights_map, name)
        last = hook
    for part in module.modules():
        if part.__dict__.pop("_hf_hook", None) is not None:
            part.forward = part.__dict__.pop("_old_forward")
    if last is None:
        return None
    return AlignDevicesHook(
        execution_device=last.execution_device,
        offload=True,
        weights_map=Gathered(sources),
        place_submodules=True,
        skip_keys=last.skip_keys,
    )


def hooked(module: torch.nn.Module, hook: Any) -> None:
    """Have `hook` bring the weights of `module` for every call."""
    from accelerate.hooks import add_hook_to_module

    add_hook_to_module(module, hook)


def rename(module: torch.nn.Module, hook: Any, inserted: str) -> None:
    """Let `hook` find what has `inserted` in its name now, but not where it comes from."""
    names = _names(module, hook)
    hook.weights_map = Gathered({name: (hook.weights_map, name.replace(inserted, "")) for name in names})


@attrs.frozen(eq=False)
class Gathered(Mapping[str, Tensor]):
    """Tensors by name, each from a separate map under a name there."""

    sources: dict[str, tuple[Mapping[str, Tensor], str]]

    def __getitem__(self, name: str) -> Tensor:
        source, known = self.sources[name]
        return source[known]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def read_ahead(model: torch.nn.Module, *, layers: int) -> None:
    """From now on, what the next modules need is read while a module of `model` computes.

    Nothing happens where no weights are streamed, or where this was done already. Memory holds the weights
    of the module that computes and of about one of its `layers` decoder layers.
    """
    hooks = [(module, hook) for module, hook in streamed_modules(model)]
    if not hooks or any(isinstance(hook.weights_map, ModuleWeights) for _, hook in hooks):
        return
    parts = [Part(hook.weights_map, _names(module, hook), _device(hook)) for module, hook in hooks]
    sizes = [_bytes(module, hook) for module, hook in hooks]
    reader = Reader(parts, sizes, max(sum(sizes) // max(layers, 1), *sizes))
    for number, (_, hook) in enumerate(hooks):
        hook.weights_map = ModuleWeights(reader, number)


@attrs.frozen(eq=False)
class Part:
    """Where the weights of one module come from, their names, and where they go; None: where they are."""

    source: Mapping[str, Tensor]
    names: Sequence[str]
    device: torch.device | None


class Reader:
    """Reads the weights of modules in a separate thread, in the order in which they were called last.

    What was read for modules that are not the next ones after all is dropped.
    """

    def __init__(self, parts: Sequence[Part], sizes: Sequence[int], ahead: int) -> None:
        """
        Args:
            parts: of every module, by its number.
            sizes: of each in bytes.
            ahead: bytes that are read together, as soon as no more than half as many wait.
        """
        self.parts = parts
        self._sizes, self._ahead = sizes, ahead
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._next: dict[int, int] = {}
        self._here: int | None = None
        self._weights: dict[str, Tensor] = {}
        self._waiting: dict[int, Future[dict[int, dict[str, Tensor]]]] = {}  # in the order of calls

    def take(self, number: int, name: str) -> Tensor:
        """A weight of a module. The first one of a module other than the last says that it is called now."""
        if number != self._here:
            self._enter(number)
        if name in self._weights:
            return self._weights.pop(name)
        return self.parts[number].source[name]

    def _enter(self, number: int) -> None:
        if self._here is not None:
            self._next[self._here] = number
        self._here = number
        foreseen = self._waiting.pop(number, None)
        if foreseen is None:
            for unused in self._waiting.values():
                unused.cancel()
            self._waiting.clear()
        self._weights = {} if foreseen is None else _settled(foreseen).pop(number)
        if 2 * sum(self._sizes[one] for one in self._waiting) <= self._ahead:
            self._ask(next(reversed(self._waiting), number))

    def _ask(self, last: int) -> None:
        """Have those read that follow on `last`, as far as is known."""
        asked: list[int] = []
        size, at = 0, self._next.get(last)
        while at is not None and at not in (self._here, *self._waiting, *asked) and size < self._ahead:
            asked.append(at)
            size, at = size + self._sizes[at], self._next.get(at)
        if asked:
            future = self._worker.submit(_read, {one: self.parts[one] for one in asked})
            self._waiting |= dict.fromkeys(asked, future)


@attrs.frozen(eq=False)
class ModuleWeights(Mapping[str, Tensor]):
    """The weights of the module `number`, as its hook asks for them."""

    reader: Reader
    number: int

    @property
    def source(self) -> Mapping[str, Tensor]:
        """Where they come from."""
        return self.reader.parts[self.number].source

    def __getitem__(self, name: str) -> Tensor:
        return self.reader.take(self.number, name)

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.get(id(self), self.source)  # a second model has its own reader


def _read(parts: Mapping[int, Part]) -> dict[int, dict[str, Tensor]]:
    """The weights of modules, where they go."""
    return {number: _brought(part) for number, part in parts.items()}


def _brought(part: Part) -> dict[str, Tensor]:
    weights = {name: part.source[name] for name in part.names}
    if part.device is None:
        for weight in weights.values():
            _touch(weight)
        return weights
    # During the computation, and done when this returns.
    stream = torch.cuda.Stream(part.device)
    with torch.cuda.stream(stream):
        moved = {name: weight.to(part.device, non_blocking=True) for name, weight in weights.items()}
    stream.synchronize()
    return moved


def _touch(weight: Tensor) -> None:
    """Have a mapped file's pages in memory, where whoever computes does not wait for them.

    By numpy: torch would take the threads that compute.
    """
    if weight.is_contiguous() and weight.numel() > PAGE:
        weight.detach().view(-1).view(torch.uint8).numpy()[::PAGE].max()


def _settled(future: Future[dict[int, dict[str, Tensor]]]) -> dict[int, dict[str, Tensor]]:
    try:
        weights = future.result()
    except OSError as error:
        raise InvalidInput(
            f"Weights that are streamed could not be read ({error}); restore the folder that they were "
            "offloaded to, or load the model again."
        ) from error
    for weight in (weight for of_module in weights.values() for weight in of_module.values()):
        if weight.device.type == "cuda":
            weight.record_stream(torch.cuda.current_stream(weight.device))
    return weights


def _names(module: torch.nn.Module, hook: Any) -> list[str]:
    """The names of what a hook brings, as it asks for them."""
    return [name for name, _ in _tensors(module, hook)]


def _bytes(module: torch.nn.Module, hook: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _tensors(module, hook))


def _tensors(module: torch.nn.Module, hook: Any) -> Iterator[tuple[str, Tensor]]:
    from accelerate.utils import named_module_tensors

    tensors: Iterator[tuple[str, Tensor]] = named_module_tensors(
        module,
        include_buffers=hook.offload_buffers,
        recurse=hook.place_submodules,
        remove_non_persistent=True,
    )
    return tensors


def _device(hook: Any) -> torch.device | None:
    """Where a CUDA device's weights go; others are brought by the hook itself."""
    device = hook.execution_device
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return device if device.type == "cuda" else None
