"""`RowView`: what a policy may know of a row before a round."""

from __future__ import annotations

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.protocols.pass_costs import PassCosts

HISTORY = 32
"""Rounds of a row that its view remembers."""


@attrs.frozen
class RowView:
    """The facts of a row that a policy with `reads_row = True` gets before it grows the row's tree.

    All of them are known before a token of the round is drawn, so a tree may depend on them and keeps law P.

    Attributes:
        length: tokens of the text so far, with the prompt and the root.
        left: new tokens that the row may still have; at least 1.
        history: of the row's last `HISTORY` rounds, the newest last: drafted nodes, and accepted ones. It
            begins anew with every row.
        rows: rows of the round, for a `BatchPolicy`. Any other policy finds 1, since its trees may not
            depend on which rows share the pass.
        costs: of passes, as the decoder was given them; None: it was given none.
    """

    length: int = 1
    left: int = 128
    history: tuple[tuple[int, int], ...] = ()
    rows: int = 1
    costs: PassCosts | None = None

    @property
    def drafted(self) -> int:
        """Returns the drafted nodes of the rounds in `history`."""
        return sum(drafted for drafted, _ in self.history)

    @property
    def accepted(self) -> int:
        """Returns the accepted nodes of the rounds in `history`."""
        return sum(accepted for _, accepted in self.history)

    def known_costs(self) -> PassCosts:
        """Returns `costs`.

        Raises:
            InvalidInput: there are none.
        """
        if self.costs is None:
            raise InvalidInput(
                "The policy weighs what passes cost, and the decoder was given no pass_costs; give it "
                "draftwood.measure_costs(target, drafter), or a file of draftwood tune."
            )
        return self.costs
