"""Pearson's chi-square test of whether samples have a law, with the bias that it would detect."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

SIGNIFICANCE = 1e-6
"""How often a lossless sampler may be called biased."""

POWER = 0.99
"""How often a bias of the size that is stated is detected."""

FEWEST = 20.0
"""Expected samples of a sequence, below which it is judged together with others like it."""

Text = tuple[int, ...]


@attrs.frozen
class ChiSquareResult:
    """The result of a test.

    Attributes:
        p_value: how likely samples of the expected law are to be off as much.
        smallest_bias: in total variation; laws further off fail with probability `POWER`.
    """

    p_value: float
    smallest_bias: float


def chi_square_test(
    counts: Mapping[Text, int], law: Mapping[Text, float], *, models: int = 1
) -> ChiSquareResult:
    """Test `counts` of sequences against `law`, at `SIGNIFICANCE` over so many models.

    The chi-square statistic of a law at total variation d from the expected one has noncentrality at least
    4 N d^2 (Cauchy and Schwarz), so that the noncentrality which the test detects gives d. Sequences that are
    expected fewer than `FEWEST` times count as one: a bias that only moves probability among these is not
    seen. An impossible sequence that occurs has p-value 0.

    Needs scipy.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    total = sum(counts.values())
    if any(count and not law.get(text, 0.0) for text, count in counts.items()):
        return ChiSquareResult(0.0, 0.0)
    cells, rest, rest_expected = [], 0, 0.0
    for text, chance in law.items():
        if chance * total >= FEWEST:
            cells.append((counts.get(text, 0), chance * total))
        else:
            rest, rest_expected = rest + counts.get(text, 0), rest_expected + chance * total
    if rest_expected >= FEWEST:
        cells.append((rest, rest_expected))
    freedom = len(cells) - 1
    if freedom < 1:
        return ChiSquareResult(1.0, 0.0)
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    limit = chi2.isf(SIGNIFICANCE / models, freedom)
    noncentrality = brentq(lambda size: ncx2.sf(limit, freedom, size) - POWER, 1e-9, 100 * limit)
    return ChiSquareResult(float(chi2.sf(statistic, freedom)), (noncentrality / total) ** 0.5 / 2)
