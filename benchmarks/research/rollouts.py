"""Rollouts of GRPO: tokens a pass while the policy is trained, by what the drafts know of it.

One training of TRL's GRPO. At every step all contenders write after the same prompts with the policy as it is
then, each with its own draft; the training goes on with the texts of the last one. A prompt comes again every
few steps, so that a cache of earlier rollouts holds texts of it. At every step each contender also writes
greedy texts, which are compared with the texts of `generate()` and from which nobody learns.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer

from benchmarks.research.held_out import FILES
from benchmarks.research.verifiers import interval
from draftwood import Deterministic, Drafter, SamplingParams, TreePolicy, custom_generate, zoo
from draftwood.apps.files.datasets import read
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.drafters import CachedSuffixes
from draftwood.policies import Chain, LayeredDySpec
from draftwood.verifiers import RecursiveRejection
from draftwood.zoo.distil.online import OnlineDistillation

WINDOW = 5
"""Steps whose texts are counted together."""


@attrs.frozen
class Rollout:
    """The texts of a contender at one step.

    Attributes:
        contender: its name.
        step: from 1.
        tokens: of every text, without those that came with the prompt's pass.
        rounds: of every text.
        drafted: nodes of all trees.
        equal: whether its greedy texts equal the texts of `generate()`.
        learning: seconds in which its draft learnt.
    """

    contender: str
    step: int
    tokens: Sequence[int]
    rounds: Sequence[int]
    drafted: int
    equal: bool
    learning: float


@attrs.define(eq=False)
class Contender:
    """A draft under measurement.

    Attributes:
        name: in the table.
        loop: writes the rollouts.
        greedy: writes the greedy texts, with a draft that learns nothing from them.
        learner: of the draft; None where it does not learn.
        seconds: in which it learnt so far.
    """

    name: str
    loop: Any
    greedy: Any
    learner: OnlineDistillation | None = None
    seconds: float = 0.0

    def learn(self, *call: Any) -> None:
        """A call of the learner, timed."""
        assert self.learner is not None
        started = perf_counter()
        self.learner(*call)
        self.seconds += perf_counter() - started


def contenders(draft: str, *, nodes: int, steps: int, rate: float | None) -> list[Contender]:
    """A cache of earlier rollouts, the draft as it is, and the draft that follows the policy."""
    vocab = zoo.load(models.TARGET).config.vocab_size
    cached = LayeredDySpec(nodes, law=Deterministic, threshold=0.02)
    chain = Chain(nodes)
    frozen, following = zoo.load(draft), zoo.load(draft)
    learner = OnlineDistillation(draft=following, steps=steps, learning_rate=rate)
    follows = Contender("following", None, _loop(following, chain), learner)
    follows.loop = _loop(following, chain, learner=follows.learn)
    at_one = SamplingParams(temperature=1.0)  # the texts in the cache have the target's temperature already
    return [
        Contender(
            "earlier rollouts",
            _loop(CachedSuffixes(vocab), cached, draft_sampling=at_one),
            _loop(CachedSuffixes(vocab), cached, draft_sampling=at_one),
        ),
        Contender("frozen", _loop(frozen, chain), _loop(deepcopy(frozen), chain)),
        follows,
    ]


def _loop(drafter: Drafter | torch.nn.Module, policy: TreePolicy, **options: Any) -> Any:
    return custom_generate(drafter=drafter, policy=policy, verifier=RecursiveRejection(), **options)


@attrs.define(eq=False)
class Writers:
    """`generate` of the policy: all contenders write, and the last one's texts are returned.

    Attributes:
        model: the policy.
        contenders: in turn.
        rollouts: of all steps so far.
        to: a CSV file that gets a line for each as it comes.
    """

    model: Any
    contenders: Sequence[Contender]
    to: Path | None = None
    rollouts: list[Rollout] = attrs.field(factory=list)
    _step: int = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        generate = type(self.model).generate.__get__(self.model)
        self._step += 1
        greedy = {**options, "do_sample": False}
        plain = generate(*args, **greedy)
        sequences = None
        for one in self.contenders:
            equal = torch.equal(generate(*args, **greedy, custom_generate=one.greedy), plain)
            before = one.seconds
            output = generate(*args, **options, custom_generate=one.loop, return_dict_in_generate=True)
            self._keep(self._rollout(one, output, equal, one.seconds - before))
            sequences = output.sequences
        return sequences

    def _keep(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)
        if self.to is not None:
            write(self.to, [_line(rollout)], mode="a")

    def _rollout(self, one: Contender, output: Any, equal: bool, learning: float) -> Rollout:
        rows = range(len(output.sequences))
        records = [record for finished in output.statistics.rounds for record in finished.rows]
        by_row = [[record for record in records if record.row == row] for row in rows]
        return Rollout(
            one.name,
            self._step,
            [sum(len(record.tokens) for record in some) for some in by_row],
            [len(some) for some in by_row],
            sum(record.outcome.drafted for record in records),
            equal,
            learning,
        )


def digits(completions: Sequence[str], **_: Any) -> list[float]:
    """The reward: the share of digits among the characters of a text."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


def trained(
    writers: Writers, prompts: Sequence[str], *, steps: int, texts: int, tokens: int, rate: float, seed: int
) -> Iterator[float]:
    """Trains the policy by GRPO, and yields the mean reward of every step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer: Any = zoo.tokenizer()
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=texts,
            num_generations=8,
            max_completion_length=tokens,
            max_steps=steps,
            learning_rate=rate,
            lr_scheduler_type="constant",
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=seed,
        )
        trainer = GRPOTrainer(
            model=writers.model,
            reward_funcs=digits,
            args=options,
            train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
            processing_class=tokenizer,
        )
        writers.model = trainer.model
        trainer.model.generate = writers
        trainer.train()
        yield from (entry["reward"] for entry in trainer.state.log_history if "reward" in entry)


def rollouts(
    data: Annotated[Path, typer.Argument(help="Folder with gsm8k_test.jsonl.")],
    steps: Annotated[int, typer.Option(help="Steps of GRPO.", min=WINDOW)] = 50,
    prompts: Annotated[int, typer.Option(help="Prompts, each written eight times in a step.", min=2)] = 16,
    texts: Annotated[int, typer.Option(help="Texts of a step, a multiple of 8.", min=8)] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=2)] = 24,
    rate: Annotated[float, typer.Option(help="Learning rate of the policy.")] = 1e-4,
    draft: Annotated[str, typer.Option(help="A model of the zoo.")] = "llama-draft-sampled",
    draft_rate: Annotated[float | None, typer.Option(help="Learning rate of the draft.")] = None,
    draft_steps: Annotated[int, typer.Option(help="Steps of the draft after every call.", min=1)] = 2,
    nodes: Annotated[int, typer.Option(help="Of a chain or tree.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    table: Annotated[Path | None, typer.Option("--csv", help="Write the table here.")] = None,
    every_step: Annotated[Path | None, typer.Option(help="Write a line for every step here, as CSV.")] = None,
) -> None:
    """Tokens a pass of llama-7m in GRPO: frozen draft, following draft, cache of earlier rollouts.

    \b
    Examples:
      python -m benchmarks rollouts data/
    """
    models.quiet()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chosen = [prompt.text for prompt in read(data / FILES["gsm8k"]).spread(prompts)]
    some = contenders(draft, nodes=nodes, steps=draft_steps, rate=draft_rate)
    if every_step is not None:
        write(
            every_step, [["contender", "step", "tokens", "rounds", "nodes", "equal", "seconds of learning"]]
        )
    writers = Writers(zoo.load(models.TARGET), some, every_step)
    rewards = list(trained(writers, chosen, steps=steps, texts=texts, tokens=tokens, rate=rate, seed=seed))
    done = writers.rollouts
    typer.echo(
        f"{device_name()}: {models.TARGET} with {draft}, {steps} steps of {texts} texts of {tokens} tokens, "
        f"{prompts} prompts, {nodes} nodes; reward {rewards[0]:.3f} at first, {rewards[-1]:.3f} at last"
    )
    lines = list(windows(done, [one.name for one in some], steps))
    for line in lines:
        typer.echo("".join(f"{cell:<24}" for cell in line))
    for one in some:
        own = [rollout for rollout in done if rollout.contender == one.name]
        typer.echo(
            f"{one.name}: greedy texts equal at {sum(rollout.equal for rollout in own)} of {len(own)} steps, "
            f"{sum(rollout.drafted for rollout in own) / sum(map(_rounds, own)):.1f} nodes a pass"
            + (f", learning {one.seconds / len(own):.2f} s a step" if one.learner else "")
        )
    if table is not None:
        write(table, lines)


def _rounds(one: Rollout) -> int:
    return sum(one.rounds)


def _line(one: Rollout) -> list[str]:
    figures = one.step, sum(one.tokens), sum(one.rounds), one.drafted, int(one.equal)
    return [one.contender, *map(str, figures), f"{one.learning:.3f}"]


def write(file: Path, lines: Iterable[Sequence[str]], *, mode: str = "w") -> None:
    """Write lines as CSV."""
    with file.open(mode, newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n").writerows(lines)


def windows(done: Sequence[Rollout], names: Sequence[str], steps: int) -> Iterator[list[str]]:
    """Yields the table: tokens a pass at the first step, in the middle and at the end."""
    half, middle = WINDOW // 2, steps // 2
    spans = {
        "step 1": (1, 1),
        f"steps {middle - half} to {middle + half}": (middle - half, middle + half),
        f"steps {steps - WINDOW + 1} to {steps}": (steps - WINDOW + 1, steps),
    }
    yield ["draft", *spans]
    for name in names:
        cells = [name]
        for first, last in spans.values():
            here = [one for one in done if one.contender == name and first <= one.step <= last]
            tokens, rounds = (
                torch.tensor([count for one in here for count in getattr(one, what)], dtype=torch.float64)
                for what in ("tokens", "rounds")
            )
            mean, low, high = interval(tokens, rounds)
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        yield cells
