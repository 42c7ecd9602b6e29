"""`read_tuned`: the method that `draftwood tune` chose for a pair of models on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import attrs
import torch

from draftwood.base.errors import DraftwoodError, IncompatibleModels, InvalidInput, UnknownStrategy
from draftwood.base.json_text import parse_json
from draftwood.decoding.decoder import SpeculativeDecoder, as_backend, is_model
from draftwood.distributions.sampling import SamplingParams
from draftwood.methods.recipe import Recipe
from draftwood.protocols import Drafter, StateBackend, registry
from draftwood.protocols.pass_costs import PassCosts

FORMAT, VERSION = "draftwood-tuned", 1
ENGINES = ("auto", "eager", "inductor", "openvino")
DTYPES = ("auto", "float32", "bfloat16")
_AGAIN = "run draftwood tune again"


def _is(*kinds: type) -> Any:
    """A validator: a value of one of `kinds`."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if type(value) not in kinds:
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise InvalidInput(f"{field.name} is {value!r:.80}, not {expected}; {_AGAIN}.")

    return check


def _is_dtype(_: object, __: object, value: Any) -> None:
    if value not in DTYPES:
        raise InvalidInput(f"dtype is {value!r:.80}; known are: {', '.join(DTYPES)}.")


def _is_engine(_: object, __: object, value: Any) -> None:
    if value not in ENGINES:
        raise InvalidInput(f"engine is {value!r:.80}; known are: {', '.join(ENGINES)}.")


def _costs(value: Any) -> PassCosts | None:
    return value if value is None or isinstance(value, PassCosts) else PassCosts.of_file(value)


@attrs.frozen
class TunedModel:
    """A description by which a model is recognised.

    Attributes:
        name: a folder, a model of the zoo or a hub name.
        vocab_size: width of its logits.
        weight_bytes: bytes of its weights, which another size or precision changes.
    """

    name: str = attrs.field(validator=_is(str))
    vocab_size: int = attrs.field(validator=_is(int))
    weight_bytes: int = attrs.field(validator=_is(int))

    def check(self, role: str, model: StateBackend | Drafter, *, file: str, dtype: str) -> None:
        """Raise `IncompatibleModels` where `model` has another vocabulary or other weights."""
        for name, unit in (("vocab_size", "tokens"), ("weight_bytes", "bytes of weights")):
            expected, value = getattr(self, name), getattr(model, name)
            if expected != value:
                raise IncompatibleModels(
                    f"{file!r} was tuned for the {role} {self.name!r} with {expected} {unit}, and this one "
                    f"has {value}; load that model in the precision {dtype!r}, or {_AGAIN} for this pair."
                )


@attrs.frozen
class TunedMethod:
    """A method, the pair of models that it was tuned for, and its gain there.

    Attributes:
        file: where it was read, for messages.
        target: the target.
        draft: the model that drafts; None where `drafter` needs none.
        vocabulary: digest of the tokenizer's vocabulary.
        temperature: of the target.
        dtype: precision of the models, `"float32"` or `"bfloat16"`; `"auto"`: as they are stored.
        recipe: name of the registered recipe; None: ordinary decoding is faster than all that was tried.
        options: of the recipe.
        drafter: a registered name, or `package.module:Class`, which is never imported for the file's sake;
            `"model"`: `draft` drafts.
        drafter_options: options of that drafter.
        gain: new tokens per second divided by the rate of ordinary decoding, in the tuning's final
            comparison.
        draft_vocabulary: digest of the draft's tokenizer where that is another one, of which it proposes the
            tokens that both have; None where it is the target's.
        draft_temperature: the draft's own; None: as the recipe has it.
        engine: what runs the models; see `draftwood.load`.
        pass_costs: seconds of passes, for policies that weigh them; None: the file has none.
    """

    file: str = attrs.field(validator=_is(str))
    target: TunedModel
    draft: TunedModel | None
    vocabulary: str = attrs.field(validator=_is(str))
    temperature: float = attrs.field(validator=_is(float, int))
    dtype: str = attrs.field(validator=_is_dtype)
    recipe: str | None = attrs.field(validator=_is(str, type(None)))
    options: dict[str, Any] = attrs.field(validator=_is(dict))
    drafter: str = attrs.field(validator=_is(str))
    drafter_options: dict[str, Any] = attrs.field(validator=_is(dict))
    gain: float = attrs.field(validator=_is(float, int))
    draft_vocabulary: str | None = attrs.field(default=None, validator=_is(str, type(None)))
    draft_temperature: float | None = attrs.field(default=None, validator=_is(float, int, type(None)))
    engine: str = attrs.field(default="eager", validator=_is_engine)
    pass_costs: PassCosts | None = attrs.field(default=None, converter=_costs)

    @property
    def ordinary(self) -> bool:
        """Returns whether ordinary decoding is faster than all that was tried."""
        return self.recipe is None

    @property
    def sampling(self) -> SamplingParams:
        """Returns the `sampling` argument of `generate`."""
        return SamplingParams(temperature=float(self.temperature))

    @property
    def draft_sampling(self) -> SamplingParams | None:
        """Returns the `draft_sampling` argument of `generate`."""
        return self.method().draft_sampling(self.sampling)

    def method(self) -> Recipe:
        """Returns the recipe with its options; for ordinary decoding, one whose trees have only a root.

        Raises:
            InvalidInput: a name or option that cannot be used; classes that are not registered are such.
        """
        if self.recipe is None:
            policy = registry.create("policies", "ordinary")
            return Recipe(policy, registry.create("verifiers", "recursive-rejection"))
        options = dict(self.options)
        if "temperature" in registry.options("recipes", self.recipe):
            options["temperature"] = self.temperature
        recipe = cast(Recipe, _built("recipes", self.recipe, options))
        if self.draft_temperature is None:
            return recipe
        return attrs.evolve(recipe, draft_temperature=self.draft_temperature)

    def decoder(self, target: Any, drafter: Any = None) -> SpeculativeDecoder:
        """A decoder of the method for the tuned pair, taken as `SpeculativeDecoder` takes them.

        Args:
            target: the target.
            drafter: the draft, or the drafter. Left out: the drafter of the file. Where ordinary
                decoding is faster it is not used, and keeps no state.

        Raises:
            IncompatibleModels: another pair than the file's.
            InvalidInput: the file's draft is a model, or its drafter a class that is not registered, and no
                drafter is passed.
        """
        target = as_backend(self._loaded(target))
        self.check(target)
        if self.ordinary:
            drafter = registry.create("drafters", "prompt-lookup", {"vocab_size": target.vocab_size})
        elif drafter is None and self.draft is not None:
            raise InvalidInput(
                f"{self.file!r} drafts with the model {self.draft.name!r}; give it as drafter."
            )
        elif drafter is None and ":" in self.drafter:
            raise InvalidInput(
                f"{self.file!r} drafts with the class {self.drafter!r}, and a file may run no code; import "
                "it and give it as drafter."
            )
        elif drafter is None:
            context = {"vocab_size": target.vocab_size, "target": target}
            names = context.keys() & registry.options("drafters", self.drafter).keys()
            options = {name: context[name] for name in names} | self.drafter_options
            drafter = _built("drafters", self.drafter, options)
        elif self.draft_vocabulary is not None and is_model(drafter):
            raise InvalidInput(
                f"{self.file!r} was tuned with a draft of another tokenizer, and a folder or model "
                "does not map its tokens; give the drafter that SharedTokens.between() makes of both "
                "tokenizers."
            )
        elif isinstance(drafter, (str, PathLike)):
            drafter = registry.create("drafters", "model", {"backend": self._loaded(drafter)})
        decoder = self.method().decoder(target, drafter, pass_costs=self.pass_costs)
        self.check(target, None if self.ordinary else decoder.drafter)
        return decoder

    def check(self, target: StateBackend, draft: StateBackend | Drafter | None = None) -> None:
        """Raise `IncompatibleModels` where the models have another vocabulary or other weights."""
        self.target.check("target", target, file=self.file, dtype=self.dtype)
        if self.draft is not None and draft is not None:
            # A drafter of another tokenizer proposes the target's tokens.
            translates = self.draft_vocabulary is not None and not is_model(draft)
            size = (self.target if translates else self.draft).vocab_size
            expected = attrs.evolve(self.draft, vocab_size=size)
            expected.check("draft", draft, file=self.file, dtype=self.dtype)

    def _loaded(self, model: Any) -> Any:
        """A folder or hub name in the precision of the file, over its engine; anything else as it is."""
        if not isinstance(model, (str, PathLike)):
            return model
        dtype = None if self.dtype == "auto" else getattr(torch, self.dtype)
        return registry.load(model, dtype=dtype, engine=cast(Any, self.engine))


def _built(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """The registered `name` with options that stand in a file."""
    with registry.registered_only():
        try:
            return registry.create(kind, name, options)
        except DraftwoodError:
            raise
        except Exception as error:  # options of the wrong kind fail in many ways
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            remedy = "give the drafter itself" if kind == "drafters" else _AGAIN
            raise InvalidInput(
                f"{name!r} cannot be built from its options ({reason:.80}); {remedy}."
            ) from error


def read_tuned(path: str | PathLike[str]) -> TunedMethod:
    """Reads the method that `draftwood tune` wrote to the file `path`.

    Raises:
        InvalidInput: it cannot be read, is no such file, or is one of another version.
    """
    file = fspath(path)
    try:
        content = parse_json(Path(file).read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InvalidInput(f"{file!r} is not JSON of draftwood tune ({error}); {_AGAIN}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInput(f"{file!r} was not written by draftwood tune; give a file that was.")
    if (version := content.get("version")) != VERSION:
        raise InvalidInput(
            f"{file!r} has version {version!r:.40} and this draftwood reads {VERSION}; {_AGAIN}."
        )
    try:
        return _from(file, content)
    except UnknownStrategy as error:
        raise InvalidInput(
            f"{file!r} names a strategy or option that is not here, so {_AGAIN}: {error}"
        ) from error
    except DraftwoodError as error:
        raise InvalidInput(f"{file!r}: {error}") from error


def _from(file: str, content: Mapping[str, Any]) -> TunedMethod:
    fields = {field.name: field for field in attrs.fields(TunedMethod) if field.name != "file"}
    needed = [name for name, field in fields.items() if field.default is attrs.NOTHING]
    if missing := [name for name in needed if name not in content]:
        raise InvalidInput(f"{missing[0]} is missing; {_AGAIN}.")
    values = {name: content[name] for name in fields if name in content}
    target, draft = _model("target", values["target"]), values["draft"] and _model("draft", values["draft"])
    method = TunedMethod(**(values | {"target": target, "draft": draft or None}), file=file)
    method.draft_sampling  # noqa: B018 (raises for a recipe, option or temperature that cannot be)
    return method


def _model(role: str, value: Any) -> TunedModel:
    names = [field.name for field in attrs.fields(TunedModel)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        raise InvalidInput(f"{role} is {value!r:.80}, not an object with {', '.join(names)}; {_AGAIN}.")
    return TunedModel(**value)
