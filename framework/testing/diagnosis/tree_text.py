"""Trees and distributions in words, for the messages of proofs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood.trees.tree import TokenTree

_SHOWN = 16
"""Probabilities of one distribution that a message shows."""


def tree_as_text(
    tree: TokenTree, target_probs: Tensor | None = None, text: Sequence[int] | None = None
) -> str:
    """The tree, one node a line, below its parent: token, the law it was drawn from, the target after it.

    Args:
        tree: at most some dozen nodes, over a small vocabulary.
        target_probs: `[nodes, vocab]`, or None to leave the target out.
        text: laws are shown along these tokens only, and the nodes they pass are marked; None shows all.
    """
    lines: list[str] = []

    def visit(node: int, law: str, passed: bool) -> None:
        mark = "*" if passed and text is not None else " "
        line = f"{mark} {'  ' * int(tree.depths[node])}{node}: token {int(tree.tokens[node])}"
        lines.append(line + (f", drawn from {law}" if law else ""))
        shown = passed or text is None
        if shown and target_probs is not None:
            lines.append(
                f"  {'  ' * int(tree.depths[node])}   target {distribution_as_text(target_probs[node])}"
            )
        earlier: list[int] = []
        depth = int(tree.depths[node])
        for k, child in enumerate(tree.children(node)):
            token = int(tree.tokens[child])
            proposal = tree.proposals.get(node)
            drawn = ""
            if shown and proposal is None:
                drawn = "a law that the tree does not name"
            elif shown and proposal is not None:
                law_as_text = distribution_as_text(proposal.conditional(k, earlier))
                drawn = f"{law_as_text} ({type(proposal).__name__}, child {k})"
            visit(child, drawn, passed and (text is None or (depth < len(text) and token == text[depth])))
            earlier.append(token)

    visit(0, "", True)
    return "\n".join(lines)


def distribution_as_text(p: Tensor) -> str:
    """A distribution in short; of a large vocabulary the tokens that have something."""
    if len(p) <= _SHOWN:
        return "[" + " ".join(f"{x:.4g}" for x in p.tolist()) + "]"
    live = p.nonzero().flatten()[:_SHOWN].tolist()
    return "{" + ", ".join(f"{token}: {float(p[token]):.4g}" for token in live) + "}"
