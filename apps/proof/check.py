"""`draftwood check`: the conformance suite on anyone's strategy, with what a failure means."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from draftwood import StateBackend
from draftwood.apps.proof.built_strategy import as_used, build, is_proved, protocol_of
from draftwood.apps.terminal import options
from draftwood.apps.terminal.cli_errors import FAILED
from draftwood.apps.terminal.interrupts import never_dropped
from draftwood.base.errors import InvalidInput, nearest
from draftwood.base.import_object import import_object

if TYPE_CHECKING:
    from draftwood.testing.checks.strategy_checks import Check
    from draftwood.testing.models.oracles import LogitsAfter

REMEDIES: Mapping[str, str] = {
    "declaration": "Set these attributes on the class; the protocol's docstring lists them.",
    "proposal-law": "Usual causes: a drawn node was dropped for its own token (decide before the draw), the "
    "children were not drawn from the proposal that the tree names, or the number of a node's children "
    "depends on their tokens, or on what came below them, and the class does not declare adaptive = True.",
    "lossless": "Usual causes for a policy: see the check proposal-law. For a verifier: after a "
    "rejection it draws from the target instead of the residual max(target - draft, 0), or it tests a later "
    "sibling against the first one's distribution instead of conditional(k, earlier).",
    "declared": "Usual causes: after a rejection it draws from the target instead of the residual "
    "max(declared - draft, 0), or it emits a bonus token at a leaf, where the draft's distribution is not "
    "known.",
    "siblings": "Usual cause for a verifier that looks at all siblings at once: it takes them to be all the "
    "tokens that the draft has.",
    "silent": "A path that ends early is one that the draft had nothing for: judge it as a leaf.",
    "views": "What a view says is known before anything is drawn, so it may decide which nodes are drawn, "
    "and never which drawn ones are kept.",
    "lossiness": "Give probabilities that are finite and sum to 1, and tokens that the tree holds.",
    "adaptive": "How many siblings there are tells something of their tokens. A verifier that looks at "
    "several siblings at once declares adaptive = False.",
    "corners": "Residuals vanish or divide by zero here. Where nothing is left, draw from the target; accept "
    "no token to which the target gives probability 0.",
    "rounds": "One round may be right and the next root wrong: the extra token must be drawn after the "
    "last accepted node, and bonus says whether that node is a leaf.",
    "learnt": "A policy that has learnt something draws by law P too: what a state says counts as known "
    "before anything is drawn, so it may decide which nodes are drawn, and never which drawn ones are kept.",
    "wide": "Look for a limit on siblings or tokens: a top-k, a buffer, a kernel's block.",
    "deep": "Look for code that runs only at the first levels, for children taken to be numbered one after "
    "another, and for padding taken for nodes.",
    "arithmetic": "Compute in the dtype that is given, or above; draw from the very tensor that the proposal "
    "names, and do not round before a comparison.",
    "accept": "accept(p) is true with probability p: a uniform below p, strictly.",
    "choose": "choose(p) inverts the cumulative weights in float64.",
    "without-replacement": "Draw one, leave it out, draw the next by what is left.",
    "edges": "A uniform may be exactly 0: compare strictly, and search the cumulative weights to the right.",
    "uniforms": "Give float64 uniforms in [0, 1) with all their digits.",
    "ahead": "ahead(n) shows what uniforms(n) takes next, and takes nothing.",
    "bad-input": "Emit nothing that the target forbids, end, and give a path of nodes from the root down; "
    "where the input cannot be judged, raise InvalidDistribution.",
    "repeatable": "Take all randomness from rng, change no argument, and remember nothing between calls.",
    "interleaved": "Keep nothing on self while a tree grows: use local variables, and for what observe() "
    "learns a state that first_state() begins (see LearningPolicy). An attrs.frozen class refuses such a "
    "write at once.",
    "together": "verify_rows gives one outcome a row, in the rows' order, and takes each row's chance from "
    "its own stream; leave it out where it only calls verify.",
    "copies": "Every row may hold a copy: keep what grow() needs in fields that survive copy and pickle.",
    "budget": "Count a node before it is added; the root does not count.",
    "chain": "Declare branches = True, or give a node one child at most.",
    "independent-paths": "Declare independent_paths = False where two nodes branch, or one of two equal "
    "paths ends.",
    "as-used": "Look for what happens in larger trees only: a depth, a budget, a vocabulary or a text beyond "
    "some size.",
    "nothing-to-propose": "A row of zeros proposes nothing: draw_children gives no tokens there, so end "
    "the branch.",
    "tree": "A node's distribution is that of the text and its own path; its parent's number counts on over "
    "the requests of a round.",
    "shapes": "See Drafter.distributions: padded to the longest request, -inf where nothing is proposed.",
    "rows": "Keep the rows apart, and let those after a released row move up.",
    "commit": "Keep outcome.tokens, root first, and drop every other node that was asked for.",
    "many-rounds": "Look for what is cut off, or one too few, when rows grow over many commits.",
    "deterministic": "Draw nothing at random, and forget a row's text when it is released.",
}
"""Where to look first, by the check's name or by the part before its law."""
FOLLOWS: Mapping[str, str] = {
    "proposal-law": "repeatable",
    "learnt": "proposal-law",
    "lossless": "proposal-law",
    "declared": "proposal-law",
    "corners": "lossless",
    "rounds": "lossless",
    "adaptive": "lossless",
    "siblings": "lossless",
    "silent": "lossless",
    "deep": "lossless",
    "wide": "lossless",
    "arithmetic": "lossless",
    "as-used": "lossless",
    "commit": "tree",
    "rows": "commit",
    "many-rounds": "rows",
}
"""Checks that what fails another one makes fail too."""
_LAW_S = (
    "Law S in the docstring of StateBackend says what every call must leave; places of nodes count on over "
    "calls until the next commit."
)
_TOO_LARGE = "That is no verdict: its tree has too many outcomes to visit them all; make it smaller with -o."


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A class derived from a protocol, or a function that builds one.",
            show_default=False,
        ),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="name=value for the class or function; repeatable."),
    ] = None,
    models: Annotated[int, typer.Option(min=1, help="Random toy models in addition to the chosen ones.")] = 2,
    oracle: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="What a backend or drafter is compared with: a function from a list of tokens to the logits "
            "after them. Default: its model.",
            show_default=False,
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(help="CHECK=REASON: this check must fail, for this reason; repeatable."),
    ] = None,
) -> None:
    """Check your strategy, backend or source of randomness.

    Says which law fails, on which tree, and where to look first; what one mistake explains is told once.
    Policies and verifiers are proved: every random outcome on small random models is visited. Backends and
    drafters are compared with an oracle that has no part in them. The module is found as Python finds it,
    and in the current folder. The exit code is 1 when a check fails.

    \b
    Examples:
      draftwood check my_policy:Comb
      draftwood check my_policy:Comb -o length=3 --models 50
      draftwood check my_package.drafters:build
      draftwood check my_heads:Mine -o target=llama-7m
      draftwood check my_backend:make --oracle my_backend:logits_after
      draftwood check my_verifier:Mine --expect "rounds=a known mistake"
    """
    from draftwood.apps.terminal.plain_console import PlainConsole

    if importlib.util.find_spec("hypothesis") is None:
        raise InvalidInput(
            "The checks need the package hypothesis; install it, or draftwood with the extra test."
        )
    from draftwood.base.one_thread import one_thread
    from draftwood.testing.checks.strategy_checks import checks_for
    from draftwood.testing.diagnosis.unrun_lines import LineWatch, as_ranges
    from draftwood.testing.models.drafter_with_target import judged

    words = options.parse(option or [])
    strategy = build(target, words)
    kind = type(judged(strategy))
    used, smaller = as_used(target, words) if is_proved(kind) else (None, "")
    checks = dict(checks_for(strategy, models=models, oracle=_oracle(oracle), used=used))
    expected = _expected(expect or [], checks)
    console = PlainConsole(lines=True)
    said = repr(judged(strategy)) if attrs.has(kind) else kind.__name__
    console.print(f"{said}, a {protocol_of(kind)}: {len(checks)} checks.")
    if smaller:
        console.print(
            f"Proofs enumerate a smaller one: {smaller}; as-used samples the one that will be used.",
            soft_wrap=True,
        )
    lines = LineWatch(kind)
    # Toy models are small; others may not be.
    threads = one_thread() if is_proved(kind) else nullcontext()
    with _hypothesis_silent(), never_dropped(), lines, threads:
        failed = [
            failure
            for name, one in checks.items()
            if (failure := _run(name, one, expected.get(name), console)) is not None
        ]
    by_cause: dict[Hashable, list[Failure]] = {}
    for failure in failed:
        by_cause.setdefault(failure.cause(failed), []).append(failure)
    for first, *others in by_cause.values():
        console.print(f"\n{first.what}", soft_wrap=True)
        if others:
            names = ", ".join(other.check for other in others)
            console.print(f"Most likely for the same cause: {names}.", soft_wrap=True)
    if lines.unrun:
        console.print(
            f"\nNo verdict on line(s) {as_ranges(lines.unrun)} of {kind.__name__}, which never "
            "ran; give options with which they do.",
            soft_wrap=True,
        )
    if failed:
        console.print(f"\n{len(failed)} of {len(checks)} checks failed.")
        raise typer.Exit(FAILED)
    console.print(f"All {len(checks)} checks passed." if not expected else "Every check did as expected.")


def _oracle(named: str | None) -> LogitsAfter | None:
    """The function that `module:name` stands for."""
    if named is None:
        return None
    function = import_object(named, [])
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(
            f"{named!r} is no function; name one that takes a list of tokens and gives the logits [vocab] "
            "after them."
        )
    oracle: LogitsAfter = function
    return oracle


def _expected(words: Sequence[str], checks: Mapping[str, Check]) -> dict[str, str]:
    expected = {}
    for word in words:
        name, _, reason = (part.strip() for part in word.partition("="))
        if name not in checks:
            raise InvalidInput(f"There is no check {name!r} here{nearest(name, checks)}")
        if not reason:
            raise InvalidInput(f"The expected failure {name!r} has no reason; write {name}=REASON.")
        expected[name] = reason
    return expected


@attrs.frozen
class Failure:
    """A check that failed.

    Attributes:
        check: its name.
        what: the demand, what was found, and where to look first.
        raised: an error of the strategy's own code, in words; empty where there was none.
        law: whose breach fails several checks, the first of which is the simplest; empty where there is none.
    """

    check: str
    what: str
    raised: str = ""
    law: str = ""

    @property
    def stem(self) -> str:
        """The name without the law that the check is about."""
        return self.check if self.check in REMEDIES else self.check.partition("-")[0]

    def cause(self, failed: Sequence[Failure]) -> Hashable:
        """Returns a key that is equal for failures with one cause."""
        if self.raised:
            return self.raised
        if self.law:
            return self.law
        stem, stems = self.stem, {other.stem for other in failed if not other.raised}
        while FOLLOWS.get(stem) in stems:
            stem = FOLLOWS[stem]
        return stem


def _run(name: str, check: Check, reason: str | None, console: Any) -> Failure | None:
    """Run a check and print its line; what is wrong, or None."""
    from draftwood.testing import BudgetExceeded

    try:
        looked_at = check()
    except AssertionError as error:
        if reason is not None:
            console.print(f"  expected  {name}: {reason}")
            return None
        console.print(f"  FAILS     {name}", style="bold red")
        failure = str(error).removeprefix(f"{type(check.strategy).__name__} fails the check {name!r}: ")
        if isinstance(error.__cause__, BudgetExceeded):
            return Failure(name, f"{name}: {check.demand}\n{failure}\n{_TOO_LARGE}")
        raised = _raised(error, type(check.strategy))
        remedy = f"Mend this first: {raised}." if raised else _remedy(check)
        backend = StateBackend in type(check.strategy).__mro__
        # Malformed calls are judged separately, unless an answer is wrong before them.
        law = "S" if backend and (not name.startswith("bad-") or failure.startswith("node ")) else ""
        return Failure(name, f"{name}: {check.demand}\n{failure}\n{remedy}", raised, law)
    if reason is None:
        console.print(f"  ok        {name}{f': {looked_at}' if looked_at else ''}", soft_wrap=True)
        return None
    console.print(f"  FAILS     {name}", style="bold red")
    return Failure(name, f"{name}: it was expected to fail ({reason}) and passes; remove the expectation.")


def _raised(error: BaseException, kind: type) -> str:
    """The error that code in the module of `kind` raised below `error`, with its line; else nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (AssertionError, ExceptionGroup)):
        return ""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not frames:
        return ""
    return f"{type(error).__name__} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}"


@contextmanager
def _hypothesis_silent() -> Iterator[None]:
    """Keep how to repeat a search in pytest from the terminal."""
    from hypothesis import Verbosity, settings

    before = settings.get_current_profile_name()
    settings.register_profile("draftwood-check", settings.get_profile(before), verbosity=Verbosity.quiet)
    settings.load_profile("draftwood-check")
    try:
        yield
    finally:
        settings.load_profile(before)


def _remedy(check: Check) -> str:
    if StateBackend in type(check.strategy).__mro__:
        return _LAW_S
    return REMEDIES.get(check.name) or REMEDIES[check.name.partition("-")[0]]
