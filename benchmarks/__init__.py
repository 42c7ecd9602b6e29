"""Measurements. `python -m benchmarks` runs the decoding race."""
