"""The four protocols. Subclass one to add a strategy; its laws are in its docstring.

Rows are independent sequences. Every backend and drafter holds them in one order: `prefill` appends
rows, `release` removes some (the later ones move up), and every other call has one entry a row.
The root of every tree is the last committed token; it is not yet in any state, so a prompt of n
tokens prefills n - 1 and its last token is the first root.

Every call that target and drafter both get, `prefill`, `commit` and `release`, is made on the target first:
when a drafter's `commit` runs, the target has committed the same tokens, and `take_features` gives theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.base.errors import UnsupportedModel
from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols.ranks import Ranks
from draftwood.trees.growth import Growing
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.outcome import Outcome
from draftwood.trees.reading import read_chains
from draftwood.trees.request import Request
from draftwood.trees.tree import TokenTree

State = TypeVar("State")


class TreePolicy(Protocol):
    """Decides which tree to grow. Single-row code with no model in sight; a table can drive it.

    Law P: children follow their declared proposal, given everything drawn before them. Whether a node
    is kept may depend on anything except that node's own token and what came of it.

    All rows share one policy and their growths run side by side, so `grow` changes nothing on `self`; make
    it an `attrs.frozen` class.

    Attributes:
        laws: the proposal laws its trees may carry.
        adaptive: whether the number of a node's children may depend on the tokens of any of them, or on
            what was drawn below them. A policy that is not adaptive settles how many children a node gets
            before the first of them is drawn, by what was drawn before and by independent chance; in
            which order it comes to its nodes is free. Verifiers that look at several siblings at once
            serve such policies alone.
        branches: whether a node may have more than one child.
        learns: whether it is a `LearningPolicy`, whose trees depend on what came of earlier ones.
        source: paper and algorithm.
    """

    laws: frozenset[type[Proposal]]
    adaptive: bool = False
    branches: bool = True
    learns: bool = False
    source: str = ""

    def grow(self, root: int, rng: Randomness) -> Growing:
        """Grow a tree under the token `root`.

        Yields what it asks for, and returns the tree.

        - `tree.open(nodes, law, counts)` asks for children. The answer is a list with the `Siblings` of each
          node, which the loop has drawn for all rows at once.
        - `tree.request(nodes)` asks for the draft distributions, after the draft's own sampling transform:
          `[k, vocab]`, or `[k, drafters, vocab]` where several drafters propose. `draw_children` and `rng`
          draw from them. A row of zeros means that the drafter has nothing to propose there.
        """
        ...


class LearningPolicy(TreePolicy, Protocol[State]):
    """A policy whose trees depend on what came of earlier ones, by a state handed from round to round.

    The policy itself never changes: `first_state` gives what it knows at first, `grow` reads a state, and
    `observe` gives the next one. So each row has a state of its own, and `Generation.policy_states` can be
    handed to the next call. A state is a value: immutable, hashable, of one class, and equal (`==`) where
    the same was learnt, such as an `attrs.frozen` class of numbers and tuples. It may hold anything known
    after the round: settings, counts, tokens.

    What `observe` needs of the growth besides the tree, `grow` puts into `TokenTree.note`, a value too. Law P
    holds for the trees of every state: what was learnt counts as known before anything is drawn.
    """

    learns: bool = True

    def first_state(self) -> State:
        """What it knows before the first round."""
        ...

    def grow(self, root: int, rng: Randomness, state: State | None = None) -> Growing:
        """Grow a tree as `TreePolicy.grow` does, by what was learnt; None is the first state."""
        ...

    def observe(self, state: State, outcome: Outcome, tree: TokenTree) -> State:
        """The state after a round.

        Args:
            state: that the tree was grown by.
            outcome: of the round, in this tree.
            tree: as `grow` returned it, with its note; without levels beyond the text's limit. Its
                distributions are overwritten in the next round.
        """
        ...


class Drafter(Protocol):
    """Supplies next-token logits for the nodes a policy asks for.

    Attributes:
        vocab_size: width of its logits.
        drafters: how many distributions it gives a node; above 1 the logits are `[..., drafters, vocab]`.
        backends: those whose rows it keeps, which nobody else may use meanwhile.
        weight_bytes: bytes of its weights, which a memory-bound pass must read; 0 for a table.
        source: paper and algorithm.
        model: whose next-token logits it gives, for the checks to compare with, as in `StateBackend`; None
            where they are no model's.
        remembers: whether its logits depend on more than the row's own text: on what was committed in other
            rows and in earlier calls. Within a round they depend on nothing else that is asked. Sampled texts
            then depend on it too, though their law does not.
    """

    vocab_size: int
    drafters: int = 1
    backends: Sequence[StateBackend] = ()
    weight_bytes: int = 0
    source: str = ""
    model: Any = None
    remembers: bool = False

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows whose text before the root is `rows[i]` `[length]` int64 (possibly empty)."""
        ...

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all of them; never raises for a row that it does not have."""
        ...

    def distributions(
        self, requests: Sequence[Request | None]
    ) -> Float[Tensor, "rows nodes *drafters vocab"]:
        """Logits `[rows, nodes, vocab]` for one request a row, padded to the longest.

        `None` where a row asks for nothing. A node where nothing is proposed gets -inf throughout. What the
        caller gives may be `Requests`, which holds all of them as one batch; `Requests.of` makes it so. The
        logits are the caller's own, to be written to.
        """
        ...

    def planned_levels(
        self, roots: Sequence[int], plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        """All levels of a round under `roots`, one a row, in one go; None: ask level by level instead.

        They stand for all calls of `distributions` that a policy of this plan would make, after a softmax at
        this temperature. Where it gives None, nothing has happened. Offer it where many small calls cost
        more than one large one.
        """
        return None

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        """Keep each row's accepted path (`outcome.tokens`, root first) and drop the rest.

        Tokens may be among them that nobody asked about, such as leaves, a constraint's or the next turn of
        a chat. An outcome without tokens leaves its row's text as it is.
        """
        ...


class StateBackend(Protocol):
    """The state of a model during decoding.

    Law S: for every tree and every sequence of calls, `extend` returns what sequential decoding of each
    node's path would return, and after `commit(paths)` the state is what sequential decoding of the
    paths leaves. Accepted paths are not contiguous in the tree. A call that raises leaves the
    committed state as it was.

    Attributes:
        vocab_size: width of the logits.
        max_length: tokens of the longest text that the model can go on from, or None where there is no end.
        weight_bytes: bytes of the weights that a pass reads.
        eos_token_ids: tokens that end a text unless the caller says otherwise.
        pad_token_id: what pads finished rows, or None.
        skippable_layers: layers that `without_layers` may leave out, counted from 0; 0: it cannot.
        hidden_size: width of the states that the output head reads, and features of a layer; None: not known.
        feature_layers: the model's decoder layers, where `keep_features` can keep what they read; 0: it
            cannot.
        gives_first_logits: whether `first_logits` is offered.
        device: where token ids go, and logits are unless a model is spread over several.
        model: what it runs, for the checks to compare with: a torch module, which answers by its plain
            forward, or an object whose `logits(tokens)` gives `[vocab]` after a list of tokens; or None.
        ranks: the processes that run the model together with this one, which then all make the same calls;
            None: this one alone.
    """

    vocab_size: int
    max_length: int | None
    weight_bytes: int
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    skippable_layers: int = 0
    hidden_size: int | None = None
    feature_layers: int = 0
    gives_first_logits: bool = False
    device: torch.device = torch.device("cpu")
    model: Any = None
    ranks: Ranks | None = None

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        ...

    def renew(self) -> None:
        """Take up what has changed in the model since the last call, or refuse it in one sentence.

        Called while there are no rows, before the first ones join (law R).
        """
        return

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none)."""
        ...

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """As `prefill`, and the logits behind the last token of each of these rows, `[len(rows), vocab]`.

        So a text's first token costs no pass of its own. Offered where `gives_first_logits` is true; a row
        has one token at least.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} gives no logits with a prefill; call prefill() and extend()."
        )

    def take_over(self, cache: Any, lengths: Sequence[int]) -> None:
        """As `prefill` of rows of these lengths, which the model has read into `cache` already.

        Args:
            cache: a transformers cache of a batch that is padded on the left; it is not changed.
            lengths: cached tokens of every row.

        Raises:
            InvalidInput: a cache that cannot be read.
            UnsupportedModel: the backend reads none.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} reads no cache of another call; leave past_key_values out."
        )

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all of them; never raises for a row that it does not have."""
        ...

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Append nodes to the uncommitted region of every row and return their logits.

        Args:
            tokens: `[rows, nodes]` int64.
            parents: `[rows, nodes]` int64, region indices: the index of the parent among all nodes that the
                row's calls appended since the last commit; -1 is the committed state. A parent stands
                before its child.
            counts: valid nodes of every row, the rest being padding; None means all.

        Returns:
            Logits `[rows, nodes, vocab]`, which no later call changes; rows beyond `counts` are undefined.
        """
        ...

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Append `rows[i]` to row i and commit it, as the next turn of a chat.

        Override it where a model reads a prompt otherwise than it decodes.

        Args:
            rows: tokens of every row; none for rows that stay as they are, which not all do. No row has
                uncommitted nodes.

        Returns:
            Logits `[rows, vocab]` after the last token of every row; 0 for rows that stay as they are.
        """
        return read_chains(rows, extend=self.extend, commit=self.commit)

    def extend_levels(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        plan: LevelPlan,
        *,
        temperature: float = 1.0,
    ) -> Levels | None:
        """As `extend` without uncommitted nodes, and on from every row's last node level by level.

        What is expanded follows from the model's own distributions, by `plan`. Of every level the first
        `Levels.widths` candidates join the region, in their order, behind the nodes that were given.

        Args:
            tokens: int64; the last one of a row is the root of its tree.
            parents: int64, as in `extend`.
            plan: how a level leads to the next.
            temperature: of the distributions, above 0.

        Returns:
            The candidates of all levels; or None where this is not offered, or some tree would hold more
            than it found. Then the region is as it was.
        """
        return None

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, by region index and in order, and drop the others.

        Every path starts at a node with parent -1 and follows parent to child; it may be empty.
        """
        ...

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """A second backend over the same weights with these layers left out and rows of its own.

        It keeps law S for the smaller model; neither backend notices the other. Its `weight_bytes` are
        those that its own pass reads. Offered where `skippable_layers` is above 0.

        Raises:
            InvalidInput: a layer that is not there, one named twice, or all of them.
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} cannot leave out layers: its skippable_layers is "
            f"{self.skippable_layers}; use a draft model."
        )

    def keep_features(
        self,
        layers: Sequence[int],
        *,
        last: int | None = None,
        through: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """From now on keep what `take_features` gives; without this call it costs nothing.

        Offered where `feature_layers` is L above 0. Features of layer k < L are what the decoder layer k,
        counted from 0, reads of a token: for 0 its embedding, for others the residual stream behind k layers.
        Those of layer L are what the output head reads, behind the final norm. So k counts as transformers'
        `hidden_states` does.

        One drafter reads them. The same call again changes nothing; no layers at all end it.

        Args:
            layers: which, in the order in which they are concatenated.
            last: keep those of so many tokens a row at most, the last ones; None for all. A row whose
                features nobody takes grows by all.
            through: what features `[..., len(layers) * hidden_size]` go through before they are kept, pass by
                pass. Of a long prompt only what comes out is held, never its features all at once.

        Raises:
            InvalidInput: a layer below 0 or above L, `last` below 1, or rows whose features were not kept.
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} gives no features: its feature_layers is {self.feature_layers}; use a "
            "draft model."
        )

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """Features of every token committed since the last call, one tensor a row, `[tokens, width]`.

        In the order of the text, prompts included; without tokens for a row that has committed none since.
        They are those of sequential decoding of the text up to rounding, on `device`, and the caller's own.

        Raises:
            UnsupportedModel: nothing was kept; call `keep_features` first.
        """
        raise UnsupportedModel(f"{type(self).__name__} keeps no features; call keep_features() first.")

    def input_embeddings(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """What the model's table of embeddings gives for `tokens`, before positions or whatever follows it.

        Offered where `feature_layers` is above 0.

        Raises:
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(f"{type(self).__name__} gives no input embeddings; use a draft model.")

    def output_head(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """Logits of features of layer L: those that `extend` gives for the same token, soft-caps and all.

        Offered where `feature_layers` is L above 0.

        Raises:
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(f"{type(self).__name__} has no output head by itself; use a draft model.")


class Verifier(Protocol):
    """Decides which path of a tree is accepted and which token follows. `verify` is all that it must have.

    Law V: for a lossless verifier, a tree that obeys law P and any target, the joint law of the emitted
    tokens is the target's. Rows that are judged together come out as they do alone.

    Attributes:
        laws: the proposal laws it verifies without loss.
        lossless: whether law V holds.
        adaptive: whether it holds on adaptive trees too (see `TreePolicy`). One that looks at several
            siblings at once takes their law to be the drawing law, which only holds where their number
            tells nothing of them, and says no.
        branches: whether it judges trees that branch; one that does not judges chains alone.
        greedy: whether it serves temperature 0 alone.
        source: paper and algorithm.
    """

    laws: frozenset[type[Proposal]]
    lossless: bool = True
    adaptive: bool = True
    branches: bool = True
    greedy: bool = False
    source: str = ""

    def verify(self, tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"], rng: Randomness) -> Outcome:
        """Judge `tree` against `target_probs` `[nodes, vocab]`, the target's distribution after each node."""
        ...

    def verify_rows(
        self,
        trees: Sequence[TokenTree],
        target_probs: Sequence[Float[Tensor, "nodes vocab"]],
        rngs: Sequence[Randomness],
    ) -> list[Outcome]:
        """Judge the trees of a round, one a row: what `verify` gives for each, by the same draws.

        Override it where all rows together take fewer launches or waits than one after another. Every row
        has a stream of its own in `rngs`.
        """
        rows = zip(trees, target_probs, rngs, strict=True)
        return [self.verify(tree, probs, rng) for tree, probs, rng in rows]
