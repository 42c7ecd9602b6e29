"""`draftwood generate`: any models, strategies by name, text as it is committed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from draftwood import (
    Drafter,
    Recipe,
    SamplingParams,
    SpeculativeDecoder,
    Statistics,
    TreePolicy,
    TunedMethod,
    Verifier,
    create,
    read_tuned,
    registry,
)
from draftwood.apps import models, options, structured, trace
from draftwood.apps.cli_errors import INTERRUPTED, to_stderr
from draftwood.apps.text import IncrementalText, Streamer, decode
from draftwood.compatibility import check_strategy_fits
from draftwood.errors import IncompatibleModels, InvalidInput
from draftwood.generation import Generation


@attrs.frozen
class Strategy:
    """What the command line chose, before any model is loaded."""

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
    registered = drafter if models.is_drafter(drafter) else None
    named = [("recipes", recipe), *([("drafters", registered)] if registered else [])]
    *_, drafter_options = options.assign(words, named)
    return Strategy(
        method.policy,
        method.verifier,
        registered,
        drafter_options if registered else {},
        drafter,
        method.draft_temperature,
    )


def strategy_of_parts(
    policy: str, verifier: str | None, drafter: str, option_words: list[str], temperature: float
) -> Strategy:
    """Policy and verifier by name with their options, checked against each other."""
    verifier = verifier or ("greedy" if temperature == 0 else "recursive-rejection")
    registered = drafter if models.is_drafter(drafter) else None
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
        rest[0] if rest else {},
        drafter,
    )
    check_strategy_fits(strategy.policy, strategy.verifier)
    return strategy


def strategy_of_tuned(
    tuned: TunedMethod, *, target: str | None, drafter: str | None, temperature: float, flags: dict[str, Any]
) -> Strategy:
    """What `draftwood tune` found, unless the command line asks for something else besides.

    Raises:
        InvalidInput: one of `flags` that chooses a strategy.
        IncompatibleModels: another pair than the tuned one.
    """
    if other := next((name for name, value in flags.items() if value), None):
        raise InvalidInput(f"--tuned {tuned.file} brings its own strategy, so --{other} does not go with it.")
    drafter_name = tuned.draft.name if tuned.draft else tuned.drafter
    if ":" in drafter_name and drafter is None and not (tuned.draft or tuned.ordinary):
        raise InvalidInput(
            f"{tuned.file!r} drafts with the class {drafter_name!r}, and a file may run no code; give "
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
    method = attrs.evolve(tuned, temperature=temperature).method()
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


def _prompts(texts: list[str], file: Path | None) -> list[str]:
    """The prompts from the options, the file, or what is piped in."""
    if texts and file is not None:
        raise InvalidInput("Both --prompt and --prompt-file were given; give one of them.")
    if not texts and file is None and sys.stdin.isatty():
        raise InvalidInput("There is no prompt; give --prompt, --prompt-file or pipe text in.")
    if not texts:
        where = repr(str(file)) if file else "Standard input"
        try:
            content = file.read_bytes() if file else sys.stdin.buffer.read()
        except OSError as error:
            raise InvalidInput(f"{where} cannot be read: {error.strerror}.") from error
        texts = [_text(content, where)]
    else:
        texts = [_from_option(text, "--prompt") for text in texts]
    if not all(text.strip() for text in texts):
        raise InvalidInput("The prompt is empty; give at least one word.")
    return texts


def _from_option(word: str, option: str) -> str:
    """A word of the command line; in a locale of another encoding Python keeps bytes as half characters."""
    return _text(word.encode("utf-8", "surrogateescape"), option)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not UTF-8 text; convert it first.") from error


def summary(statistics: Statistics) -> str:
    """The totals that people compare, in one line."""
    s = statistics
    return (
        f"{s.new_tokens} tokens in {s.seconds:.2f} s, {s.figure('tokens_per_second'):.1f} tokens/s, "
        f"{s.tokens_per_round:.2f} tokens per round, {s.acceptance_rate:.0%} of drafted tokens accepted"
    )


def generate(
    prompt: Annotated[
        list[str] | None, typer.Option(help="The text to continue; repeatable, for rows of one call.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A UTF-8 file with the text; default: standard input.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Model folder, hub name, or a model of the zoo.", show_default=models.TARGET),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="The same for the draft, or a drafter: registered, or package.module:Class. Default: a "
            "model of the zoo."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or hub name; default: the target's.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A method of the literature; see draftwood strategies.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="What draftwood tune wrote: models, strategy and temperature.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="How trees grow; default: layered-dyspec.", show_default=False)
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="Default: greedy at temperature 0, recursive-rejection above."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="name=value for recipe, policy, verifier or drafter; repeatable."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the most likely token.", show_default="0")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from this much probability.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop tokens below this share of the most likely one.")
    ] = None,
    draft_temperature: Annotated[
        float | None, typer.Option(help="The draft's own; default: the target's, or 1 at 0.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text behind this string; repeatable.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema: the text is JSON that fits it.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="The text matches all of this regular expression.")
    ] = None,
    dtype: Annotated[
        models.Dtype, typer.Option(help="auto: float32 on a CPU, else as the weights are stored.")
    ] = models.Dtype.auto,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a prompt instead.")] = False,
    trace_file: Annotated[
        Path | None, typer.Option("--trace", help="Write every round's tree and outcome here as JSON.")
    ] = None,
) -> None:
    """Continue texts through draft trees.

    A small model or a look-up drafts, the target verifies. The text goes to standard output as it is
    written, the summary line to standard error; of several prompts, text after text when all are written.
    Ctrl-C ends the texts and keeps what was written.

    \b
    Examples:
      draftwood generate --prompt "Once upon a time" --max-new-tokens 64
      draftwood generate --prompt-file notes.txt --policy chain -o length=4
      draftwood generate --recipe rsd-s -o width=4 --temperature 0.6 --prompt "Hi"
      echo "def add(a, b):" | draftwood generate --drafter prompt-lookup --json
      draftwood generate --drafter layer-skip -o skip=2,3,5 --prompt "Hi"
      draftwood generate --target big/ --drafter small/ -o budget=32 --prompt "Hi"
      draftwood generate --tuned tuned.json --prompt "Hi"
      draftwood generate --prompt "Hi" --prompt "Dear Sir," --trace t.json
      draftwood generate --json-schema review.json --prompt "A fine film."
    """
    known = read_tuned(tuned) if tuned else None
    if temperature is None:
        temperature = known.temperature if known else 0.0
    sampling = SamplingParams(temperature, top_k, top_p, min_p)
    if known:
        chosen = {"recipe": recipe, "policy": policy, "verifier": verifier, "option": option}
        strategy = strategy_of_tuned(
            known, target=target, drafter=drafter, temperature=temperature, flags=chosen
        )
        target = target or known.target.name
        dtype = models.Dtype(known.dtype) if dtype is models.Dtype.auto else dtype
    elif recipe:
        if policy or verifier:
            both = f"--policy {policy}" if policy else f"--verifier {verifier}"
            raise InvalidInput(f"--recipe {recipe} brings its own, so it does not go with {both}; give one.")
        strategy = strategy_of_recipe(recipe, drafter, option or [], temperature)
    else:
        strategy = strategy_of_parts(
            policy or "layered-dyspec", verifier, drafter or models.DRAFT, option or [], temperature
        )
    if draft_temperature is None:
        draft_temperature = strategy.draft_temperature
    draft_sampling = (
        None if draft_temperature is None else attrs.evolve(sampling, temperature=draft_temperature)
    )
    if stop and not all(stop):
        raise InvalidInput("A stop string is empty; give at least one character.")
    structured.check(json_schema, regex)
    if trace_file is not None:
        trace.check_writable(trace_file)
    texts = _prompts(prompt or [], prompt_file)

    models.quiet()
    target = target or models.TARGET
    loaded = models.load(
        target,
        None if strategy.drafter else strategy.model,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    if known:
        check_pair(known, loaded)
    drafts: Drafter
    if strategy.drafter:
        with registry.registered_only(but=[drafter] if drafter else []) if known else nullcontext():
            drafts = models.create_drafter(strategy.drafter, strategy.drafter_options, loaded)
    else:
        drafts = create("drafters", "model", {"backend": loaded.draft})
    decoder = SpeculativeDecoder(loaded.target, drafts, strategy.policy, strategy.verifier)
    rows: list[list[int]] = loaded.tokenizer(texts)["input_ids"]

    streamed = len(rows) == 1 and not as_json
    generation = decoder.generate(
        rows,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        constraint=structured.constraint(
            json_schema, regex, loaded.tokenizer, tuple(loaded.target.eos_token_ids)
        ),
        draft_sampling=draft_sampling,
        seed=seed,
        stop_strings=[_from_option(one, "--stop") for one in stop or ()] or None,
        tokenizer=loaded.tokenizer,
        streamer=Streamer(IncrementalText(loaded.tokenizer), _show) if streamed else None,
        trace=trace_file is not None,
        return_dict_in_generate=True,
    )
    assert isinstance(generation, Generation)
    lossless = strategy.verifier.lossless
    if as_json:
        for one in _as_json(generation, loaded.tokenizer, rows, lossless=lossless):
            typer.echo(json.dumps(one, allow_nan=False))
    elif streamed:
        typer.echo()
    else:
        for number, written in enumerate(generation.tokens, start=1):
            typer.echo(f"--- prompt {number}\n{decode(loaded.tokenizer, written)}")
    interrupted = "interrupted" in generation.finish_reasons
    said = summary(generation.statistics) + (" (interrupted)" if interrupted else "")
    to_stderr(said if lossless else f"{said}; lossy: not distributed as the target's own text")
    if trace_file is not None:
        settings = {
            "target": target,
            "drafter": strategy.model,
            "recipe": recipe,
            "policy": repr(strategy.policy),
            "verifier": repr(strategy.verifier),
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "draft_temperature": draft_temperature,
            "seed": seed,
            "lossless": lossless,
        }
        prompts = [{"text": text, "tokens": row} for text, row in zip(texts, rows, strict=True)]
        content = trace.document(generation, tokenizer=loaded.tokenizer, prompts=prompts, settings=settings)
        trace.write_json(trace_file, content)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _as_json(
    generation: Generation, tokenizer: Any, prompts: Sequence[Sequence[int]], *, lossless: bool
) -> Iterator[dict[str, Any]]:
    """An object for every prompt; the statistics are those of the call."""
    for prompt, tokens, reason in zip(prompts, generation.tokens, generation.finish_reasons, strict=True):
        yield {
            "text": decode(tokenizer, tokens),
            "tokens": tokens,
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "lossless": lossless,
            "statistics": generation.statistics.summary(),
        }
