"""Distributions by the largest scores of a node; README.md describes the loop."""

from draftwood.kernels.largest_scores.loop import keep_largest

__all__ = ["keep_largest"]
