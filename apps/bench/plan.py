"""The plan of a run, from flags or a TOML file, and its contests."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.bench.patterns import Pattern
from draftwood.apps.bench.specs import ASSISTED, Spec, contenders
from draftwood.apps.files.datasets import DataSet, Prompt, read
from draftwood.apps.files.text_input import read_text
from draftwood.apps.models import by_name as models
from draftwood.apps.models import identity
from draftwood.apps.models.method import Strategy
from draftwood.apps.models.prompts import interleaved
from draftwood.base.devices import default_device
from draftwood.base.errors import InvalidInput, nearest
from draftwood.base.validators import at_least
from draftwood.decoding.measured_costs import rows_between
from draftwood.distributions.sampling import check_temperature

BUILT_IN = "built-in"
_READ = ("models", "files", "code")
"""Digests of all that a run reads, which its configuration has besides the fields of its plan."""
_LATER = ("offload", "chat", "rows", "arrivals", "loads", "requests", "promise")
"""Fields that earlier runs did not have, which are written down where they are not the default."""
BINS = 20  # of probabilities, in the figures of acceptance against draft probability


def _several(*kinds: type, low: float | None = None) -> Any:
    """A validator: a tuple whose members are of `kinds` and at least `low`."""
    what = {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}[kinds[-1]]

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        for one in value:
            sound = isinstance(one, kinds) and not isinstance(one, bool)
            if not sound or (low is not None and not low <= one < float("inf")):
                bound = "" if low is None else f" >= {low:g}"
                raise InvalidInput(f"{field.name} holds {one!r:.80}; give {what}{bound}.")

    return check


def _temperatures(_: object, __: object, value: Sequence[float]) -> None:
    for temperature in value:
        check_temperature(temperature)


def _is(*kinds: type) -> Any:
    """A validator: a value of `kinds`; numbers at least 0."""
    what = {str: "text", float: "a number >= 0", bool: "true or false"}[kinds[-1]]

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        sound = type(value) in kinds and (isinstance(value, str) or 0 <= value < float("inf"))
        if not sound:
            raise InvalidInput(f"{field.name} is {value!r:.80}; give {what}.")

    return check


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _filled(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not value:
        raise InvalidInput(f"{field.name} is empty; give at least one.")


def _one_of(*words: str) -> Any:
    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value not in words:
            raise InvalidInput(f"{field.name} is {value!r:.80}{nearest(str(value), words)}")

    return check


@attrs.frozen
class BenchPlan:
    """Everything that a run measures.

    Attributes:
        pairs: `"TARGET,DRAFT"`, each a folder, a model of the zoo or a hub name; the draft may be a head.
        strategies: names with options; see `specs`. Ordinary `generate` runs in any case.
        data: files of prompts; none: the built-in ones.
        temperatures: of the target; 0 is greedy.
        budgets: nodes of a tree, for every strategy that has a budget and was not given one.
        prompt_lengths: tokens that prompts are cut to; 0: as they are.
        new_tokens: lengths of the texts.
        prompts: how many of each file, evenly spread.
        rows: texts that are written at once. A batch of N takes N prompts, the next batch the next ones;
            prompts repeat in a batch that is larger than their number.
        arrivals: patterns of arrivals, for requests to a shared decoder of so many rows; see `Pattern`.
            None: every batch is there at once.
        loads: shares of what ordinary decoding finishes a second, for patterns without a rate.
        requests: of every run with arrivals.
        promise: tokens a second that a user was promised, waiting included, for the goodput; 0: none.
        turns: how many of a conversation are run; 0: all.
        chat: whether turns are put into the chat template of the target's tokenizer, after those before them.
        repetitions: texts of each prompt. At temperature 0 the one of median time counts; above, each is
            another text, and all count.
        seed: of everything that is drawn.
        dtype: `"auto"`, `"float32"` or `"bfloat16"`.
        device: such as `"cpu"` or `"cuda"`; empty: what there is.
        widen: parameters that the target, of the zoo, is widened to, so that its passes cost what they
            cost in practice; 0: as it is.
        offload: a folder: the target's layers stay on the disk, and every pass of all contenders, ordinary
            `generate` included, streams them; empty: in memory.
        engine: what runs the models in draft trees; ordinary `generate` runs them as they are.
        trust_remote_code: whether code that comes with a model runs.
        paper: the table of a paper that the results are compared with; see `papers`.
    """

    pairs: tuple[str, ...] = attrs.field(
        default=(f"{models.TARGET},{models.DRAFT}",), converter=_tuple, validator=[_several(str), _filled]
    )
    strategies: tuple[str, ...] = attrs.field(
        default=(ASSISTED, "leviathan", "dyspec"), converter=_tuple, validator=_several(str)
    )
    data: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_several(str))
    temperatures: tuple[float, ...] = attrs.field(
        default=(0.0,), converter=_tuple, validator=[_several(int, float, low=0), _filled, _temperatures]
    )
    budgets: tuple[int, ...] = attrs.field(default=(), converter=_tuple, validator=_several(int, low=1))
    prompt_lengths: tuple[int, ...] = attrs.field(
        default=(0,), converter=_tuple, validator=[_several(int, low=0), _filled]
    )
    new_tokens: tuple[int, ...] = attrs.field(
        default=(64,), converter=_tuple, validator=[_several(int, low=1), _filled]
    )
    prompts: int = attrs.field(default=6, validator=at_least(1))
    rows: tuple[int, ...] = attrs.field(
        default=(1,), converter=_tuple, validator=[_several(int, low=1), _filled]
    )
    arrivals: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_several(str))
    loads: tuple[float, ...] = attrs.field(
        default=(), converter=_tuple, validator=_several(int, float, low=0)
    )
    requests: int = attrs.field(default=48, validator=at_least(1))
    promise: float = attrs.field(default=0.0, validator=_is(int, float))
    turns: int = attrs.field(default=0, validator=at_least(0))
    chat: bool = attrs.field(default=False, validator=_is(bool))
    repetitions: int = attrs.field(default=1, validator=at_least(1))
    seed: int = attrs.field(default=0, validator=at_least(0))
    dtype: str = attrs.field(default="auto", validator=_one_of(*models.Dtype))
    device: str = attrs.field(default="", validator=_is(str))
    widen: float = attrs.field(default=0.0, validator=_is(int, float))
    offload: str = attrs.field(default="", validator=_is(str))
    engine: str = attrs.field(default="eager", validator=_one_of(*models.EngineName))
    trust_remote_code: bool = attrs.field(default=False, validator=_is(bool))
    paper: str = attrs.field(default="", validator=_is(str))

    def __attrs_post_init__(self) -> None:
        for pair in self.pairs:
            if len([name for name in pair.split(",") if name.strip()]) != 2:
                raise InvalidInput(f"The pair {pair!r} is not TARGET,DRAFT; give both with a comma between.")
        if self.offload and self.widen:
            raise InvalidInput(
                f"widen {self.widen:g} makes a target in memory, and offload {self.offload!r} streams one "
                "from its files; leave one of the two out."
            )
        self.patterns()

    @property
    def by_itself(self) -> bool:
        """Whether every text is written by itself."""
        return self.rows == (1,) and not self.arrivals

    @property
    def rows_in_passes(self) -> tuple[int, ...]:
        """Rows of the passes that are timed: as in the batches; for requests, smaller numbers as well."""
        return tuple(rows_between(self.rows)) if self.arrivals else self.rows

    def patterns(self) -> list[tuple[str, float]]:
        """Returns every pattern of arrivals with a share of the capacity; 0 where it has its own rate.

        Raises:
            InvalidInput: a pattern that is none, or loads and patterns that do not fit each other.
        """
        if not self.arrivals:
            if self.loads or self.promise:
                raise InvalidInput("--load and --promise are of requests that arrive; give --arrivals too.")
            return []
        rated = [pattern for pattern in map(Pattern.parse, self.arrivals) if pattern.rate]
        if self.loads and rated:
            raise InvalidInput(
                f"{rated[0].word!r} has its own rate, so --load cannot set it; leave one of the two out."
            )
        if not self.loads and len(rated) < len(self.arrivals):
            raise InvalidInput(
                f"{', '.join(self.arrivals)} gives no rate; add one, as in poisson:2.5, or --load 0.5,0.8."
            )
        if 0 in self.loads:
            raise InvalidInput("--load holds 0; give shares of the capacity above 0, such as 0.5,0.8,0.95.")
        return [(word, load) for word in self.arrivals for load in self.loads or (0.0,)]

    def resolved(self) -> BenchPlan:
        """The plan with the precision that `"auto"` means on a CPU, every contender found and checked.

        Raises:
            DraftwoodError: a contender that does not exist, or does not fit a temperature.
        """
        for temperature in self.temperatures:
            contenders(self.strategies, self.budgets, temperature, ours=not self.by_itself)
        on_cpu = self.device == "cpu" or (not self.device and default_device().type == "cpu")
        return attrs.evolve(self, dtype="float32") if self.dtype == "auto" and on_cpu else self

    def contenders(self, temperature: float) -> list[Spec]:
        """Who writes at a temperature, ordinary `generate` first."""
        return contenders(self.strategies, self.budgets, temperature, ours=not self.by_itself)

    def document(self) -> dict[str, Any]:
        """The plan as JSON takes it, data sets by name with a digest: what makes two runs the same."""
        content = {name: list(v) if isinstance(v, tuple) else v for name, v in attrs.asdict(self).items()}
        default = {field.name: field.default for field in attrs.fields(BenchPlan)}
        for name in _LATER:
            if getattr(self, name) == default[name]:
                del content[name]
        content["data"] = {Path(file).stem: _digest(Path(file)) for file in self.data} or {BUILT_IN: ""}
        names = dict.fromkeys(name.strip() for pair in self.pairs for name in pair.split(","))
        content["models"] = {name: identity.of_model(name) for name in names}
        read = {"files": self._files(), "code": self._code()}
        return content | {name: digests for name, digests in read.items() if digests}

    def _strategies(self) -> Iterator[tuple[Spec, Strategy]]:
        for temperature in self.temperatures:
            for spec in self.contenders(temperature):
                if not spec.is_transformers:
                    yield spec, spec.strategy(temperature)

    def _files(self) -> dict[str, dict[str, str]]:
        """Returns the files that drafters of strategies read, such as heads and indices."""
        found = {spec.label: identity.of_drafter(strategy) for spec, strategy in self._strategies()}
        return {label: files for label, files in found.items() if files}

    def _code(self) -> dict[str, str]:
        """Modules of strategies from elsewhere: an edited strategy is another one."""
        found = [identity.of_code(strategy) for _, strategy in self._strategies()]
        return {module: digest for one in found for module, digest in one.items()}


def _digest(file: Path) -> str:
    """Returns the digest of a file of prompts, with the digests of the files that these name."""
    named = [one for prompt in read(file, media=True).prompts for few in prompt.files.values() for one in few]
    return identity.of_files([file, *dict.fromkeys(named)])


def from_file(file: Path) -> dict[str, Any]:
    """Returns the fields of a plan for the TOML file; paths in it are relative to its folder.

    Raises:
        InvalidInput: it cannot be read, is not TOML, or names what a plan does not have.
    """
    try:
        fields = tomllib.loads(read_text(file))
    except InvalidInput:
        raise
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{str(file)!r} is not TOML: {error}.") from error
    except ValueError as error:  # Python reads no integer of thousands of digits
        raise InvalidInput(f"{str(file)!r} holds a number that is too large; give a smaller one.") from error
    except RecursionError as error:
        raise InvalidInput(
            f"{str(file)!r} is nested too deeply; give flat keys, as the page Evaluate shows."
        ) from error
    names = [field.name for field in attrs.fields(BenchPlan)]
    for name in fields:
        if name not in names:
            raise InvalidInput(
                f"{str(file)!r} has the key {name!r:.80}, which bench does not know{nearest(name, names)}"
            )
    if "data" in fields:
        fields["data"] = [str(file.parent / one) for one in _tuple(fields["data"])]
    if isinstance(fields.get("offload"), str) and fields["offload"]:
        fields["offload"] = str(file.parent / fields["offload"])
    return fields


def from_document(content: Mapping[str, Any]) -> tuple[BenchPlan, list[str]]:
    """The plan that `document` wrote, without its files, and the names of its data sets.

    No contender is looked up: a file may name code, which nothing that is only shown may run.

    Raises:
        InvalidInput: fields that no plan has, or of another kind.
    """
    stored = {name: value for name, value in content.items() if name not in _READ}
    names = [field.name for field in attrs.fields(BenchPlan)]
    if odd := [name for name in stored if name not in names]:
        raise InvalidInput(
            f"The run's configuration has the unknown key {odd[0][:40]!r}; choose another folder."
        )
    return BenchPlan(**{**stored, "data": ()}), list(content["data"])


@attrs.frozen
class Contest:
    """Contenders on the same models, prompts, temperature and lengths, taking turns."""

    pair: str
    data: str
    temperature: float
    prompt_length: int
    new_tokens: int
    rows: int = 1
    arrivals: str = ""
    load: float = 0.0

    @property
    def key(self) -> str:
        cut = self.prompt_length or "whole"
        key = f"{self.pair} | {self.data} | T={self.temperature:g} | {cut} | {self.new_tokens}"
        key += f" | {self.rows} rows" if self.rows > 1 or self.arrivals else ""
        key += f" | {self.arrivals}" if self.arrivals else ""
        return key + (f" | load {self.load:g}" if self.load else "")

    @property
    def at_once(self) -> Contest:
        """Returns this contest without arrivals."""
        return attrs.evolve(self, arrivals="", load=0.0)

    @property
    def on_all_data(self) -> Contest:
        """Returns this contest on any other data set."""
        return attrs.evolve(self, data="")

    @property
    def title(self) -> str:
        """In words, for a table or a plot."""
        cut = f"prompts cut to {self.prompt_length}, " if self.prompt_length else ""
        return (
            f"{self.pair.replace(',', ' with ')}: {self.data}, temperature {self.temperature:g}, "
            f"{cut}{self.new_tokens} new tokens{self.company}"
        )

    @property
    def company(self) -> str:
        """Rows, arrivals and load in words, each with a comma before it; empty for one text at a time."""
        rows = f", {self.rows} rows" if self.rows > 1 or self.arrivals else ""
        arrivals = f", arrivals {self.arrivals}" if self.arrivals else ""
        return rows + arrivals + (f" at {self.load:.0%} of capacity" if self.load else "")


def contests(plan: BenchPlan, names: Sequence[str]) -> Iterator[Contest]:
    """Returns every contest of a plan over the data sets `names`, grouped by pair."""
    for pair in plan.pairs:
        for data in names:
            for temperature in plan.temperatures:
                for length, new in product(plan.prompt_lengths, plan.new_tokens):
                    for rows in plan.rows:
                        for arrivals, load in plan.patterns() or [("", 0.0)]:
                            yield Contest(pair, data, temperature, length, new, rows, arrivals, load)


def data_sets(plan: BenchPlan) -> dict[str, DataSet]:
    """The data sets of a plan by name, each with as many prompts and turns as it asks for.

    Raises:
        InvalidInput: a file that cannot be used, has too few prompts, or shares its name with another.
    """
    if not plan.data:
        sets = [DataSet(BUILT_IN, "text", tuple(Prompt(text) for text in interleaved()))]
    else:
        sets = [read(Path(file), media=True) for file in plan.data]
    for name, files in Counter(one.name for one in sets).items():
        if files > 1:
            raise InvalidInput(f"Two files are called {name!r}; give one of them another name.")
    chosen = {
        one.name: attrs.evolve(one, prompts=tuple(one.spread(plan.prompts, turns=plan.turns))) for one in sets
    }
    if not plan.by_itself:
        for name, one in chosen.items():
            if any(prompt.later for prompt in one.prompts):
                raise InvalidInput(
                    f"{name} holds conversations of several turns, and texts that are written together are "
                    "answers to first turns; give --turns 1."
                )
    return chosen
