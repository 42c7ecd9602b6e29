"""Words a second and words a pass of a small Whisper with a smaller draft, trained on artificial sound.

Every word of an artificial language sounds for a few frames, with noise. Each word has a few likely
successors, so that a draft that hears less still guesses some.
"""

from __future__ import annotations

from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import transformers as hf
import typer
from torch import Tensor

from draftwood import custom_generate
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy

WORDS, BINS, LONGEST, FRAMES = 48, 16, 24, 2
"""Words, bins of a spectrum, words of a text at most, frames of a word."""

START, END = WORDS, WORDS + 1


def speech(
    steps: Annotated[int, typer.Option(help="Steps of training.", min=1)] = 800,
    noise: Annotated[float, typer.Option(help="Spread of the noise; a word's own is 1.", min=0)] = 0.5,
    texts: Annotated[int, typer.Option(help="Texts that are written.", min=1)] = 32,
    layers: Annotated[int, typer.Option(help="Of the target's encoder and decoder.", min=1)] = 2,
    width: Annotated[int, typer.Option(help="Of the target.", min=4)] = 64,
    seed: Annotated[int, typer.Option(help="Of the language, the models and the texts.")] = 0,
) -> None:
    """Train a small pair of Whispers; measure words a second and words per target pass.

    \b
    Examples:
      python -m benchmarks speech
      python -m benchmarks speech --noise 1.0 --steps 2000
      python -m benchmarks speech --layers 12 --width 256
    """
    torch.manual_seed(seed)
    language = Language()
    target, draft = whisper(layers=layers, width=width), whisper(layers=1, width=32)
    for name, model in (("target", target), ("draft", draft)):
        wrong = train(model, language, steps=steps, noise=noise)
        typer.echo(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, loss {wrong:.3f}")
    hf.logging.set_verbosity_error()
    heard, said = language.texts(texts, noise=noise)
    told = {"max_new_tokens": LONGEST, "do_sample": False}
    plain = target.generate(input_features=heard, **told)
    same = (plain[:, : said.shape[1]] == said[:, : plain.shape[1]]).float().mean()
    typer.echo(f"words of the target that were said: {same:.2f}")
    lookup = PromptLookup(WORDS + 2)
    contenders: dict[str, dict[str, Any]] = {
        "generate()": {},
        "assisted generation": {"assistant_model": draft},
        "draft, tree of 8": {"custom_generate": loop(draft, FixedTree(4, 2, 8, 0.0, "top-k"))},
        "draft, chain of 4": {"custom_generate": loop(draft, FixedTree(4, 1, 4, 0.0, "top-k"))},
        "prompt lookup, chain of 4": {"custom_generate": loop(lookup, FixedTree(4, 1, 4, 0.0, "top-k"))},
    }
    found = {name: Written() for name in contenders}
    passes: list[None] = []
    # One hook for all calls: a model with another hook is another one, which loops load and check anew.
    target.get_decoder().register_forward_hook(lambda *_: passes.append(None))
    for row in range(-1, texts):  # the first turn warms up
        for name, options in contenders.items():
            one = write(target, passes, heard[max(row, 0)][None], **told, **options)
            if row >= 0:
                found[name] = found[name].joined(one)
    for name, one in found.items():
        equal = sum(map(torch.equal, one.texts, found["generate()"].texts))
        typer.echo(
            f"{name}: {one.words / one.seconds:.0f} words a second, "
            f"{one.words / one.passes:.2f} words a pass, {equal} of {texts} texts as by generate()"
        )


@attrs.frozen(eq=False)
class Written:
    """Texts of a contender: their tokens, passes of the target's decoder, and seconds with the encoder."""

    texts: tuple[Tensor, ...] = ()
    passes: int = 0
    seconds: float = 0.0

    @property
    def words(self) -> int:
        """Returns how many words they have; Whisper gives no token for the end."""
        return sum(map(len, self.texts))

    def joined(self, more: Written) -> Written:
        """Returns the texts of both."""
        return Written((*self.texts, *more.texts), self.passes + more.passes, self.seconds + more.seconds)


def write(target: Any, passes: list[None], heard: Tensor, **options: Any) -> Written:
    """Writes what is heard in `[1, BINS, frames]`; `passes` grows with every pass of the target's decoder."""
    before, started = len(passes), perf_counter()
    text = target.generate(input_features=heard, **options)[0]
    return Written((text,), len(passes) - before, perf_counter() - started)


def loop(drafter: Any, policy: FixedTree) -> Any:
    """Returns greedy draft trees for `generate()`."""
    return custom_generate(drafter=drafter, policy=policy, verifier=Greedy())


class Language:
    """Words with sounds, each of which has a few successors."""

    def __init__(self) -> None:
        self.sounds = torch.randn(WORDS, FRAMES, BINS)
        self.next = torch.full((WORDS, WORDS), 0.3 / WORDS)
        favourites = torch.rand(WORDS, WORDS).topk(3).indices
        self.next.scatter_add_(1, favourites, torch.tensor([[0.4, 0.2, 0.1]]).expand(WORDS, -1))

    def texts(self, count: int, *, noise: float) -> tuple[Tensor, Tensor]:
        """Returns sounds `[count, BINS, frames]` and words `[count, LONGEST]`, which end with `END`."""
        words = torch.randint(WORDS, (count, 1))
        for _ in range(LONGEST - 2):
            words = torch.cat([words, torch.multinomial(self.next[words[:, -1]], 1)], 1)
        sound = self.sounds[words].flatten(1, 2)
        sound = torch.nn.functional.pad(sound, (0, 0, 0, 2 * LONGEST - sound.shape[1]))
        sound = sound + noise * torch.randn_like(sound)
        return sound.mT.contiguous(), torch.cat([words, torch.full((count, 1), END)], 1)


def whisper(*, layers: int, width: int) -> Any:
    """A Whisper with random weights."""
    model = hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=WORDS + 2,
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=2 * width,
            decoder_ffn_dim=2 * width,
            num_mel_bins=BINS,
            max_source_positions=LONGEST,
            max_target_positions=LONGEST + 8,
            pad_token_id=END,
            bos_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    return model


def train(model: Any, language: Language, *, steps: int, noise: float) -> float:
    """Trains `model` on texts of the language; returns the mean loss of the last tenth of the steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        heard, said = language.texts(32, noise=noise)
        loss = model(input_features=heard, labels=said).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval()
    last = losses[-max(steps // 10, 1) :]
    return sum(last) / len(last)
