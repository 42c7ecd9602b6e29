"""`SamplerReport`: the result of a proof of somebody else's sampler."""

from __future__ import annotations

import attrs

from draftwood.testing.diagnosis.chi_square import SIGNIFICANCE

_MODELS = 10
"""Most models, with their settings, that a printed report holds."""

_SHOWN = 8
"""Most lines of a draft that a printed report holds."""


@attrs.frozen(repr=False)
class SamplerReport:
    """The deviation of a sampler's law from the target's; printed, it is a summary of one screen.

    Attributes:
        errors: by model and settings, the largest difference of a sequence's probability, or share of the
            samples, from the target's probability.
        expected_tokens: by model, the mean number of tokens a call emits.
        calls: number of calls of the sampler; number of rows, in a batch.
        fault: a forbidden act of the sampler, however rare: it raised, or emitted a token that the target
            forbids or that does not exist; empty if there was none.
        counterexample: the sequence that is furthest off, and the draft from which it most likely comes.
        likely: the known mistake with the same law, in a sentence; empty where there is none.
        p_value: where samples were drawn: how likely a lossless sampler is to be off as much as this one in
            any of the models (a chi-square test each); None where all was enumerated.
        smallest_bias: where samples were drawn: every law further from the target's than this, in total
            variation, fails in a model with probability 99 %; None where all was enumerated.
        resolution: by how much an outcome may be off because the sampler's uniforms have few bits.
        fault_chance: probability of the most likely outcome with a fault; None where samples were drawn.
        tolerance: the largest error that counts as rounding, where all was enumerated.
    """

    errors: dict[str, float]
    expected_tokens: dict[str, float]
    calls: int
    fault: str
    counterexample: str
    likely: str = ""
    p_value: float | None = None
    smallest_bias: float | None = None
    resolution: float = 0.0
    fault_chance: float | None = None
    tolerance: float = 1e-9

    @property
    def verdict(self) -> str:
        """Returns "broken" (see `fault`), "biased", "no bias found" of samples, or "lossless"."""
        if self.fault:
            return "broken"
        if self.p_value is not None:
            return "biased" if self.p_value < SIGNIFICANCE else "no bias found"
        return "lossless" if self.error <= self.tolerance else "biased"

    @property
    def size(self) -> str:
        """Returns the frequency of the fault, in a sentence; empty where it is not known, or always there."""
        if self.fault_chance is None or self.fault_chance > 1e-3:
            return ""
        if self.fault_chance < 1e-6 and self.error < 1e-6:
            return (
                f" The fault shows with probability {self.fault_chance:.1g} per draft, where a uniform is "
                "exactly 0 or 1, at a tie or in a last digit: a user sees no bias, but once in so many "
                "drafts an impossible token."
            )
        return f" The fault shows with probability {self.fault_chance:.1g} per draft."

    @property
    def error(self) -> float:
        """The largest of `errors`."""
        return max(self.errors.values())

    def __repr__(self) -> str:
        return (
            f"SamplerReport({self.verdict}, error={self.error:.2g}, models={len(self.errors)}, "
            f"calls={self.calls})"
        )

    def __str__(self) -> str:
        samples = "" if self.p_value is None else f" (p = {self.p_value:.2g})"
        worst = sorted(self.errors, key=self.errors.__getitem__, reverse=True)
        lines = [
            f"{self.verdict}{samples}: largest error {self.error:.2g} of a sequence's probability, "
            f"{len(worst)} models, {self.calls} calls"
        ]
        if self.smallest_bias is not None:
            lines.append(f"a bias above {self.smallest_bias:.2g} would have been seen")
        if self.fault:
            lines += [f"it {line}" if not at else line for at, line in enumerate(_first_lines(self.fault))]
        lines += [
            f"  {name}: error {self.errors[name]:.2g}, {self.expected_tokens[name]:.3g} tokens per call"
            for name in worst[:_MODELS]
        ]
        if len(worst) > _MODELS:
            lines.append(f"  {len(worst) - _MODELS} more models with smaller errors: see errors")
        if self.verdict == "biased":
            lines += _first_lines(self.counterexample)
        else:
            lines.append(f"largest error: {self.counterexample.partition(chr(10))[0]}")
        return "\n".join([*lines, *([f"most likely: {self.likely}"] if self.likely else [])])


def _first_lines(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[:_SHOWN] + ["..."] * (len(lines) > _SHOWN)
