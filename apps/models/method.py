"""Options of a command line for models, method and sampling, and the decoder that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from draftwood import (
    Constraint,
    Drafter,
    Recipe,
    SamplingParams,
    Session,
    SpeculativeDecoder,
    TreePolicy,
    TunedMethod,
    Verifier,
    create,
    read_tuned,
)
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models import own_model, structured
from draftwood.apps.models.costs import costs_for
from draftwood.apps.terminal import options
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import IncompatibleModels, InvalidInput
from draftwood.decoding.model_defaults import ModelDefaults
from draftwood.protocols import registry
from draftwood.protocols.compatibility import check_strategy_fits


@attrs.frozen
class Strategy:
    """The choices of the command line, before any model is loaded."""

    policy: TreePolicy
    verifier: Verifier
    drafter: str | None  # a drafter that loads no model, or None where a model drafts
    drafter_options: dict[str, Any]
    model: str = models.DRAFT  # the model that drafts where one does
    draft_temperature: float | None = None


def strategy_of_recipe(
    recipe: str, drafter: str | None, option_words: list[str], temperature: float
) -> Strategy:
    """The method `recipe` with its options, and its own drafter unless another is named."""
    words, parameters = options.parse(option_words), registry.options("recipes", recipe)
    recipe_words = {name: word for name, word in words.items() if name in parameters}
    (recipe_options,) = options.assign(recipe_words, [("recipes", recipe)])
    if "temperature" in parameters:
        recipe_options["temperature"] = temperature
    method: Recipe = create("recipes", recipe, recipe_options)
    drafter = drafter or (models.DRAFT if method.drafter == "model" else method.drafter)
    registered, brought = drafters.drafter_of(drafter) or (None, {})
    named = [("recipes", recipe), *([("drafters", registered)] if registered else [])]
    *_, drafter_options = options.assign(words, named)
    return Strategy(
        method.policy,
        method.verifier,
        registered,
        brought | drafter_options if registered else {},
        drafter,
        method.draft_temperature,
    )


def strategy_of_parts(
    policy: str, verifier: str | None, drafter: str, option_words: list[str], temperature: float
) -> Strategy:
    """Policy and verifier by name with their options, checked against each other."""
    verifier = verifier or ("greedy" if temperature == 0 else "recursive-rejection")
    registered, brought = drafters.drafter_of(drafter) or (None, {})
    named = [("policies", policy), ("verifiers", verifier)]
    if registered:
        named.append(("drafters", registered))
    words = options.parse(option_words)
    policy_options, verifier_options, *rest = options.assign(words, named)
    # At temperature 0 the draft's most likely tokens are the best guess at the target's.
    if temperature == 0 and "law" in registry.options("policies", policy):
        policy_options.setdefault("law", "top-k")
    strategy = Strategy(
        create("policies", policy, policy_options),
        create("verifiers", verifier, verifier_options),
        registered,
        brought | rest[0] if rest else {},
        drafter,
    )
    check_strategy_fits(strategy.policy, strategy.verifier)
    return strategy


def strategy_of_tuned(
    tuned: TunedMethod, *, target: str | None, drafter: str | None, temperature: float, flags: dict[str, Any]
) -> Strategy:
    """Returns the choice of `draftwood tune`, unless the command line also asks for something else.

    Raises:
        InvalidInput: one of `flags` that chooses a strategy.
        IncompatibleModels: another pair than the tuned one.
    """
    if other := next((name for name, value in flags.items() if value), None):
        raise InvalidInput(f"--tuned {tuned.file} chooses the strategy, so leave --{other} out.")
    drafter_name = tuned.draft.name if tuned.draft else tuned.drafter
    if target is None and own_model.is_own(tuned.target.name):
        raise InvalidInput(
            f"{tuned.file!r} names the target {tuned.target.name!r}, and a file may run no code; give "
            f"--target {tuned.target.name} to run it."
        )
    if own_model.is_own(drafter_name) and drafter is None and not tuned.ordinary:
        raise InvalidInput(
            f"{tuned.file!r} drafts with {drafter_name!r}, and a file may run no code; give "
            f"--drafter {drafter_name} to run it."
        )
    for role, expected, name in (("target", tuned.target.name, target), ("drafter", drafter_name, drafter)):
        if name is not None and Path(name).name != Path(expected).name:
            raise IncompatibleModels(
                f"{tuned.file!r} was tuned for the {role} {expected!r}, not {name!r}; run draftwood tune for "
                f"that pair, or leave --{role} out."
            )
    if tuned.ordinary:
        to_stderr(
            f"{tuned.file}: ordinary decoding was faster than all that was tried, so nothing is drafted."
        )
        method = tuned.method()
        return Strategy(method.policy, method.verifier, "prompt-lookup", {}, "prompt-lookup")
    if temperature != tuned.temperature:
        to_stderr(
            f"{tuned.file} was tuned at temperature {tuned.temperature:g}; at {temperature:g} its gain may "
            "differ."
        )
        tuned = attrs.evolve(tuned, temperature=temperature, draft_temperature=None)
    method = tuned.method()
    registered = None if tuned.draft else tuned.drafter
    return Strategy(
        method.policy,
        method.verifier,
        registered,
        tuned.drafter_options,
        drafter_name,
        method.draft_temperature,
    )


def check_pair(tuned: TunedMethod, loaded: models.Loaded) -> None:
    """Raise `IncompatibleModels` where the models are not the tuned ones."""
    tuned.check(loaded.target, loaded.draft)
    if tuned.vocabulary != models.vocabulary_digest(loaded.tokenizer):
        raise IncompatibleModels(
            f"{tuned.file!r} was tuned with another tokenizer than the target's; run draftwood tune again."
        )
    theirs = None if loaded.draft_tokenizer is None else models.vocabulary_digest(loaded.draft_tokenizer)
    if loaded.draft is not None and theirs != tuned.draft_vocabulary:
        raise IncompatibleModels(
            f"{tuned.file!r} was tuned with another tokenizer than the draft's; run draftwood tune again."
        )


@attrs.frozen
class Words:
    """The options of `draftwood generate` that say how a text is written, as they were given.

    They pickle, and mean the same on every machine that has the files and models that they name.

    Attributes:
        chosen_for: the temperature that policy and verifier are chosen for, where requests bring their own
            temperatures; None: `temperature`.
    """

    target: str | None = None
    drafter: str | None = None
    tokenizer: str | None = None
    recipe: str | None = None
    tuned: Path | None = None
    policy: str | None = None
    verifier: str | None = None
    option: tuple[str, ...] = ()
    max_new_tokens: int = 128
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    draft_temperature: float | None = None
    stop: tuple[str, ...] = ()
    json_schema: Path | None = None
    regex: str | None = None
    dtype: models.Dtype = models.Dtype.auto
    device: str | None = None
    offload: Path | None = None
    trust_remote_code: bool = False
    engine: models.EngineName | None = None
    chosen_for: float | None = None

    def absolute(self) -> Words:
        """Returns the words with absolute names of existing files and folders."""
        there = {
            name: type(value)(Path(value).resolve())
            for name in ("target", "drafter", "tokenizer", "tuned", "json_schema")
            if (value := getattr(self, name)) is not None and Path(value).exists()
        }
        return attrs.evolve(self, **there)

    def method(self) -> Method:
        """Returns the method that the words ask for; nothing is loaded yet.

        Raises:
            DraftwoodError: they do not go together, or name what is not there.
        """
        known = read_tuned(self.tuned) if self.tuned else None
        temperature = self.temperature
        if temperature is None:
            temperature = known.temperature if known else 0.0
        sampling = SamplingParams(temperature, self.top_k, self.top_p, self.min_p)
        strategy = self._strategy(known, temperature if self.chosen_for is None else self.chosen_for)
        draft_temperature = self.draft_temperature
        if draft_temperature is None:
            draft_temperature = strategy.draft_temperature
        if not all(self.stop):
            raise InvalidInput("A stop string is empty; give at least one character.")
        structured.check(self.json_schema, self.regex)
        return Method(
            self,
            known,
            strategy,
            sampling,
            None if draft_temperature is None else attrs.evolve(sampling, temperature=draft_temperature),
        )

    def _strategy(self, known: TunedMethod | None, temperature: float) -> Strategy:
        option_words = list(self.option)
        if known:
            chosen = {name: getattr(self, name) for name in ("recipe", "policy", "verifier", "option")}
            return strategy_of_tuned(
                known, target=self.target, drafter=self.drafter, temperature=temperature, flags=chosen
            )
        if self.recipe is None:
            return strategy_of_parts(
                self.policy or "layered-dyspec",
                self.verifier,
                self.drafter or models.DRAFT,
                option_words,
                temperature,
            )
        if self.policy or self.verifier:
            both = f"--policy {self.policy}" if self.policy else f"--verifier {self.verifier}"
            raise InvalidInput(f"--recipe {self.recipe} chooses policy and verifier, so leave {both} out.")
        return strategy_of_recipe(self.recipe, self.drafter, option_words, temperature)


@attrs.frozen(eq=False)
class Method:
    """The method that `words` ask for.

    Attributes:
        known: what `draftwood tune` found, where it is asked for.
        draft_sampling: None: as the decoder chooses it.
    """

    words: Words
    known: TunedMethod | None
    strategy: Strategy
    sampling: SamplingParams
    draft_sampling: SamplingParams | None

    @property
    def target(self) -> str:
        return self.words.target or (self.known.target.name if self.known else models.TARGET)

    def loaded(self) -> models.Loaded:
        """The models.

        Raises:
            DraftwoodError: they cannot be served, or are not the tuned ones.
        """
        words, known = self.words, self.known
        dtype = models.Dtype(known.dtype) if known and words.dtype is models.Dtype.auto else words.dtype
        models.quiet()
        loaded = models.load(
            self.target,
            None if self.strategy.drafter else self.strategy.model,
            tokenizer=words.tokenizer,
            dtype=dtype,
            device=words.device,
            trust_remote_code=words.trust_remote_code,
            other_tokens=known is None or known.draft_vocabulary is not None,
            offload=words.offload,
            engine=words.engine or models.EngineName(known.engine if known else "eager"),
        )
        if known:
            check_pair(known, loaded)
        return loaded

    def decoder(
        self, loaded: models.Loaded, text: Sequence[int], *, plain: bool = True
    ) -> SpeculativeDecoder:
        """Returns the decoder; standard error says what a draft of other tokens costs on texts like `text`.

        Passes that a policy weighs are timed on such texts, where they are `plain`: tokens and nothing else.
        """
        strategy, named = self.strategy, self.words.drafter
        drafts: Drafter
        if strategy.drafter:
            with registry.registered_only(but=[named] if named else []) if self.known else nullcontext():
                drafts = drafters.create_drafter(strategy.drafter, strategy.drafter_options, loaded)
        else:
            drafts = drafters.model_drafter(loaded)
            if loaded.token_map is not None:
                to_stderr(loaded.token_map.described(text))
        if self.words.temperature is None and not self.known:
            target = loaded.target
            defaults = ModelDefaults.of(target.model, ends=target.eos_token_ids, device=target.device)
            if defaults.sampling:
                asked = ", ".join(defaults.sampling)
                to_stderr(f"The target's defaults sample ({asked}); without --temperature this is greedy.")
        known = self.known.pass_costs if self.known else None
        costs = costs_for(
            strategy.policy,
            loaded.target,
            drafts,
            temperature=self.sampling.temperature,
            known=known,
            text=text if plain else (),
        )
        return SpeculativeDecoder(loaded.target, drafts, strategy.policy, strategy.verifier, pass_costs=costs)

    def constraint(self, loaded: models.Loaded) -> Constraint | None:
        """Returns the constraint that the options ask for."""
        ends = tuple(loaded.target.eos_token_ids)
        return structured.constraint(self.words.json_schema, self.words.regex, loaded.tokenizer, ends)

    def session(self, decoder: SpeculativeDecoder, loaded: models.Loaded) -> Session:
        """A session without rows."""
        return decoder.session(
            max_new_tokens=self.words.max_new_tokens,
            sampling=self.sampling,
            draft_sampling=self.draft_sampling,
            stop_strings=list(self.words.stop) or None,
            tokenizer=loaded.tokenizer,
        )
