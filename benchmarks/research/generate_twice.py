"""A pytest plugin: every `generate()` of a test runs twice, by transformers and by draft trees.

`python -m benchmarks transformers-tests` runs transformers' own tests with it. The tests go on with what
transformers wrote, so they see nothing of the second call.
"""

from __future__ import annotations

import copy
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation.configuration_utils import GenerationMode

from draftwood import custom_generate
from draftwood.errors import DraftwoodError
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

TIE = 1e-4
"""Difference of two logits below which either token is right: passes of other shapes round otherwise."""

_INNER = ("attentions", "hidden_states")

# Modules of transformers that tests of other versions import names from which are not there, or no longer.
_OTHER_VERSIONS = (
    "transformers.integrations.tensor_parallel",
    "transformers.testing_utils",
    "transformers.conversion_mapping",
    "transformers.core_model_loading",
)
_NOT_NEEDED = "tests.test_pipeline_mixin"


@attrs.frozen
class Judged:
    """Result of a call that was made twice.

    Attributes:
        result: "equal"; "sampled": drawn at random, of as many rows and the same type; "raises": neither
            returns; "refused"; "wrong"; "raw": draft trees raise another error than draftwood's own.
        detail: of anything but "equal".
        test: that made the call.
    """

    result: str
    detail: str = ""
    test: str = ""


def judge(
    generate: Callable[..., Any],
    model: Any,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    plain: Any,
    failure: Exception | None,
) -> Judged:
    """Returns the result of `generate(model, *call[0], **call[1])` by draft trees.

    Args:
        generate: transformers' own.
        model: of the call.
        call: positional and keyword arguments.
        plain: what `generate` returned.
        failure: what it raised instead.
    """
    again = _copied(call)
    vocab = getattr(model.get_output_embeddings(), "out_features", None)
    vocab = vocab or model.config.get_text_config(decoder=True).vocab_size
    loop = custom_generate(
        drafter=PromptLookup(vocab_size=vocab), policy=Chain(3, "top-k"), verifier=RecursiveRejection()
    )
    try:
        tree = generate(model, *call[0], **call[1], custom_generate=loop)
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if failure is not None:
            return Judged("raises", said)
        return Judged("refused" if isinstance(error, DraftwoodError) else "raw", said)
    if failure is not None:
        return Judged("wrong", f"returns where generate() raises {failure!r}")
    if type(plain) is not type(tree):
        return Judged("wrong", f"a {type(tree).__name__} in place of a {type(plain).__name__}")
    if _mode(model, again[1]) == GenerationMode.SAMPLE:
        return _same_form(_texts(plain), _texts(tree))
    return _compared(plain, tree, tied=lambda: _is_tie(generate, model, again, plain, tree))


def _compared(plain: Any, tree: Any, *, tied: Callable[[], bool]) -> Judged:
    left, right = _texts(plain), _texts(tree)
    if left.shape != right.shape or not torch.equal(left, right):
        if tied():
            return Judged("equal")
        return Judged("wrong", f"{right.tolist()} in place of {left.tolist()}")
    if not isinstance(plain, Tensor):
        inner = [f"{part}{kind}" for part in ("", "encoder_", "decoder_") for kind in _INNER]
        for name in ("scores", "logits", "cross_attentions", *inner):
            if not _close(getattr(plain, name, None), getattr(tree, name, None)):
                return Judged("wrong", f"other {name}")
    return Judged("equal")


def _same_form(plain: Tensor, tree: Tensor) -> Judged:
    if len(plain) != len(tree) or plain.dtype != tree.dtype:
        return Judged("wrong", f"{tuple(tree.shape)} {tree.dtype} in place of {tuple(plain.shape)}")
    return Judged("sampled")


def _texts(output: Any) -> Tensor:
    texts: Tensor = output if isinstance(output, Tensor) else output.sequences
    return texts


def _close(plain: Any, tree: Any) -> bool:
    if plain is None or tree is None:
        return plain is tree
    if isinstance(plain, Tensor):
        return plain.shape == tree.shape and torch.allclose(plain, tree, atol=2e-3, rtol=1e-3)
    return len(plain) == len(tree) and all(map(_close, plain, tree))


def _is_tie(generate: Callable[..., Any], model: Any, call: Any, plain: Any, tree: Any) -> bool:
    """Returns whether the texts part at two tokens of which `generate()` prefers neither."""
    left, right = _texts(plain), _texts(tree)
    width = min(left.shape[1], right.shape[1])
    parts = (left[:, :width] != right[:, :width]).nonzero()
    if len(left) != len(right) or not len(parts):
        return False
    row, place = min(parts.tolist(), key=lambda at: at[1])
    told = {"return_dict_in_generate": True, "output_scores": True}
    scored = generate(model, *call[0], **call[1] | told)
    best = scored.scores[place - (left.shape[1] - len(scored.scores))][row].topk(2).values
    return float(best[0] - best[1]) < TIE


def _mode(model: Any, kwargs: dict[str, Any]) -> GenerationMode:
    config = copy.deepcopy(kwargs.get("generation_config") or model.generation_config)
    for name in vars(config).keys() & kwargs:
        setattr(config, name, kwargs[name])  # `update` would refuse what the call is to refuse
    mode: GenerationMode = config.get_generation_mode(kwargs.get("assistant_model"))
    return mode


def _copied(value: Any) -> Any:
    """A copy that a call may change, caches included; models stay."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.nn.Module):
        return value
    if type(value) is dict:
        return {name: _copied(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return copy.deepcopy(value)


@attrs.define
class GenerateTwice:
    """The plugin: puts a `generate` in the place of transformers' own that makes every call twice.

    Attributes:
        calls: the results.
        failure: why tests could not be collected, if so.
    """

    calls: list[Judged] = attrs.field(factory=list)
    failure: str = ""
    _test: str = ""
    _inside: bool = False

    def pytest_configure(self) -> None:
        """Replace `generate`, and let tests of other versions be imported."""
        import_names_of_other_versions()
        self.install()

    def pytest_runtest_setup(self, item: Any) -> None:
        """Note which test calls."""
        self._test = item.name

    def pytest_collectreport(self, report: Any) -> None:
        """Note an error of the tests' own imports."""
        if report.failed:
            self.failure = str(report.longrepr).strip().splitlines()[-1].removeprefix("E").strip()

    def install(self) -> None:
        """Replace `generate` until the process ends."""
        original = GenerationMixin.generate
        judged = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)

        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            own = self._inside or "custom_generate" in kwargs
            if own or _mode(model, kwargs) not in judged:
                return original(model, *args, **kwargs)
            call, start = _copied((args, kwargs)), torch.get_rng_state()
            plain, failure = None, None
            self._inside = True
            try:
                plain = original(model, *args, **kwargs)
            except Exception as error:
                failure = error
            end = torch.get_rng_state()
            torch.set_rng_state(start)
            try:
                found = judge(original, model, call, plain, failure)
                self.calls.append(attrs.evolve(found, test=self._test))
            finally:
                self._inside = False
                torch.set_rng_state(end)
            if failure is not None:
                raise failure
            return plain

        GenerationMixin.generate = generate  # type: ignore[method-assign]


def import_names_of_other_versions() -> None:
    """Give tests of other versions of transformers the names that they import and do not need."""
    pipelines: Any = types.ModuleType(_NOT_NEEDED)
    pipelines.__getattr__ = lambda name: _otherwise(name, type(name, (), {}))
    sys.modules[_NOT_NEEDED] = pipelines
    for name in _OTHER_VERSIONS:
        module: Any = importlib.import_module(name)
        module.__getattr__ = lambda name: _otherwise(name, None)


def _otherwise(name: str, value: Any) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return value
