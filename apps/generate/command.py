"""`draftwood generate`: any models, strategies by name, text as it is committed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwood import Statistics
from draftwood.apps.files import datasets, trace
from draftwood.apps.files.datasets import Prompt
from draftwood.apps.files.text import IncrementalText, Streamer, decode
from draftwood.apps.files.text_input import decoded
from draftwood.apps.generate.media import model_prompt
from draftwood.apps.generate.text_file import write_file
from draftwood.apps.generate.weak_head import warning_of
from draftwood.apps.models import by_name as models
from draftwood.apps.models.chat import AsChat, encoded, encoded_chat
from draftwood.apps.models.method import Words
from draftwood.apps.terminal.cli_errors import INTERRUPTED
from draftwood.apps.terminal.shown import say, to_stderr, write_out
from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import check_writable, write_json
from draftwood.decoding.generation import Generation


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
        texts = [decoded(content, where)]
    else:
        texts = [text_of_option(text, "--prompt") for text in texts]
    if not all(text.strip() for text in texts):
        raise InvalidInput("The prompt is empty; give at least one word.")
    return texts


def _conversations(file: Path | None) -> list[Prompt] | None:
    """The conversations of a file of JSON, whose last turns are to be answered; None for any other file.

    Raises:
        InvalidInput: an earlier turn without an answer.
    """
    if file is None or file.suffix not in (".json", ".jsonl"):
        return None
    prompts = list(datasets.read(file).prompts)
    for number, prompt in enumerate(prompts, 1):
        if not all(prompt.is_answered(turn) for turn in range(len(prompt.chat) - 1)):
            raise InvalidInput(
                f"Prompt {number} of {str(file)!r} has several turns without answers; give them as messages "
                "with role and content, or run draftwood bench --chat, which answers them."
            )
    return prompts


def text_of_option(word: str, option: str) -> str:
    """A word of the command line; in a locale of another encoding Python keeps bytes as half characters."""
    return decoded(word.encode("utf-8", "surrogateescape"), option)


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
    image: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="An image file for the prompt; repeatable. With several prompts, each gets one.",
        ),
    ] = None,
    audio: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="The same with sound."),
    ] = None,
    video: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="The same with a video."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of many prompts: one per line, .jsonl, or requests as in OpenAI's batch files."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file, a line for every prompt of --data; an interrupted run continues."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Texts of --data that are written at once; default 8."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Write --data over a Ray cluster: its address, auto, or local to start one."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --ray: number of decoders; default: one per GPU, or per CPU without one."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Model folder, GGUF file, hub name, model of the zoo, or function package.module:name that "
            "makes one.",
            show_default=models.TARGET,
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="The same for the draft, a folder with a head, or a drafter: registered, or "
            "package.module:Name. Default: a model of the zoo."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or hub name; default: the target's.")
    ] = None,
    chat: AsChat = False,
    recipe: Annotated[
        str | None, typer.Option(help="A method of the literature; see draftwood strategies.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="A file of draftwood tune: models, strategy and temperature.")
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
    top_k: Annotated[int | None, typer.Option(help="Sample from this many tokens; 0: from all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from this much probability.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop tokens below this share of the most likely one; 0: none.")
    ] = None,
    draft_temperature: Annotated[
        float | None, typer.Option(help="The draft's temperature; default: the target's, or 1 at 0.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text after this string; repeatable.")
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
    device: models.Device = None,
    offload: models.Offload = None,
    engine: models.ChosenEngine = None,
    trust_remote_code: models.TrustRemoteCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per prompt instead.")
    ] = False,
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
      draftwood generate --target big/ --offload tmp --prompt "Hi"
      draftwood generate --target big/ --drafter small/ --engine auto --prompt Hi
      draftwood generate --prompt "Hi" --prompt "Dear Sir," --trace t.json
      draftwood generate --target vlm/ --chat --image cat.png --prompt "What?"
      draftwood generate --json-schema review.json --prompt "A fine film."
      draftwood generate --data questions.jsonl --out answers.jsonl --seed 1
      draftwood generate --data notes.txt --out texts.jsonl --ray auto
    """
    words = Words(
        target=target,
        drafter=drafter,
        tokenizer=tokenizer,
        recipe=recipe,
        tuned=tuned,
        policy=policy,
        verifier=verifier,
        option=tuple(option or ()),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        draft_temperature=draft_temperature,
        stop=tuple(text_of_option(one, "--stop") for one in stop or ()),
        json_schema=json_schema,
        regex=regex,
        dtype=dtype,
        device=device,
        offload=offload,
        trust_remote_code=trust_remote_code,
        engine=engine,
    )
    method = words.method()
    if data is not None:
        others = {
            "--prompt": prompt,
            "--prompt-file": prompt_file,
            "--image": image,
            "--audio": audio,
            "--video": video,
            "--json": as_json,
            "--trace": trace_file,
            "--chat": chat,
        }
        if unwanted := next((name for name, value in others.items() if value), None):
            raise InvalidInput(f"--data writes a file of texts, so it cannot be combined with {unwanted}.")
        write_file(method, data, out, seed=seed, rows=rows, ray=ray, workers=workers)
        return
    for name, value in {"--out": out, "--rows": rows, "--ray": ray, "--workers": workers}.items():
        if value is not None:
            raise InvalidInput(f"{name} needs --data; give the file of the prompts.")
    if trace_file is not None:
        check_writable(trace_file)
    conversations = _conversations(prompt_file) if chat and not prompt else None
    files = image or audio or video
    if conversations is not None and files:
        raise InvalidInput(
            "--image, --audio and --video are for --prompt; leave them out with a file of messages."
        )
    if files and not prompt and prompt_file is None:
        texts = [""]  # a model that writes what it hears needs no words
    else:
        texts = _prompts(prompt or [], prompt_file) if conversations is None else []

    loaded = method.loaded()
    more = None
    if conversations is None:
        more = model_prompt(
            loaded,
            method.target,
            texts,
            images=image or (),
            sounds=audio or (),
            videos=video or (),
            chat=chat,
            trust_remote_code=trust_remote_code,
        )
    if more is not None:
        given = more.texts
    elif conversations is None:
        given = encoded(loaded.tokenizer, texts, chat=chat)
    else:
        given = [encoded_chat(loaded.tokenizer, one, [""] * (len(one.chat) - 1)) for one in conversations]
    text = [token for row in given for token in row]
    decoder = method.decoder(loaded, text, plain=more is None)

    streamed = len(given) == 1 and not as_json
    generation = decoder.generate(
        given if more is None else more,
        max_new_tokens=max_new_tokens,
        sampling=method.sampling,
        constraint=method.constraint(loaded),
        draft_sampling=method.draft_sampling,
        seed=seed,
        stop_strings=list(words.stop) or None,
        tokenizer=loaded.tokenizer,
        streamer=Streamer(IncrementalText(loaded.tokenizer), write_out) if streamed else None,
        trace=trace_file is not None,
        return_dict_in_generate=True,
    )
    assert isinstance(generation, Generation)
    strategy = method.strategy
    lossless = strategy.verifier.lossless
    if as_json:
        for one in _as_json(generation, loaded.tokenizer, given, lossless=lossless):
            say(json.dumps(one, allow_nan=False))
    elif streamed:
        say()
    else:
        for number, written in enumerate(generation.tokens, start=1):
            say(f"--- prompt {number}")
            write_out(f"{decode(loaded.tokenizer, written)}\n")
    interrupted = "interrupted" in generation.finish_reasons
    said = summary(generation.statistics) + (" (interrupted)" if interrupted else "")
    to_stderr(said if lossless else f"{said}; lossy: not distributed as the target's own text")
    if head := strategy.drafter_options.get("head"):
        warned = warning_of(generation.statistics, target=str(method.target), head=str(head))
        if warned is not None:
            to_stderr(warned)
    if trace_file is not None:
        settings = {
            "target": method.target,
            "drafter": strategy.model,
            "recipe": recipe,
            "policy": repr(strategy.policy),
            "verifier": repr(strategy.verifier),
            "temperature": method.sampling.temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "draft_temperature": method.draft_sampling and method.draft_sampling.temperature,
            "seed": seed,
            "lossless": lossless,
        }
        shown = [{"text": text, "tokens": row} for text, row in zip(texts, given, strict=True)]
        content = trace.document(generation, tokenizer=loaded.tokenizer, prompts=shown, settings=settings)
        write_json(trace_file, content)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _as_json(
    generation: Generation, tokenizer: Any, prompts: Sequence[Sequence[int]], *, lossless: bool
) -> Iterator[dict[str, Any]]:
    """An object for every prompt; the statistics describe the whole call."""
    for prompt, tokens, reason in zip(prompts, generation.tokens, generation.finish_reasons, strict=True):
        yield {
            "text": decode(tokenizer, tokens),
            "tokens": tokens,
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "lossless": lossless,
            "statistics": generation.statistics.summary(),
        }
