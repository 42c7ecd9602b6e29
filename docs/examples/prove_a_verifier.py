"""A verifier proved, and the commonest mistake caught: what to draw from after a rejection."""

import attrs

from draftwood import Outcome, Verifier, WithReplacement
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain
from draftwood.testing import ToyBackend, ToyModel, assert_lossless


@attrs.frozen
class Rejection(Verifier):
    """Plain speculative sampling along a chain: accept x with probability min(1, T(x) / D(x))."""

    laws = frozenset({WithReplacement})
    branches = False

    def left(self, target, draft):
        return (target - draft).clamp(min=0)

    def verify(self, tree, target_probs, rng):
        path = [0]
        while children := tree.children(path[-1]):
            (child,) = children
            target, draft = target_probs[path[-1]], tree.proposals[path[-1]].conditional(0, ())
            wanted, offered = float(target[tree.tokens[child]]), float(draft[tree.tokens[child]])
            if wanted == 0 or not rng.accept(min(1.0, wanted / offered if offered else 1.0)):
                left = self.left(target, draft)
                extra = rng.choose(left if left.any() else target)
                return Outcome.of(tree, path, extra=extra, bonus=False)
            path.append(child)
        return Outcome.of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=True)


class TargetAgain(Rejection):
    """The mistake: the target instead of the residual."""

    def left(self, target, draft):
        return target


target, draft = ToyModel(vocab_size=3, seed=1), ToyModel(vocab_size=3, seed=2)
case = {"target": target, "drafter": ModelDrafter(ToyBackend(draft))}
assert_lossless(Chain(2, WithReplacement), Rejection(), **case)
print("Rejection is lossless.")

try:
    assert_lossless(Chain(2, WithReplacement), TargetAgain(), **case)
except AssertionError as found:
    print(f"TargetAgain is caught:\n{found}")
else:
    raise SystemExit("The mistake went through.")
