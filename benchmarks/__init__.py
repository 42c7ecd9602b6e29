"""Measurements: `python -m benchmarks` lists them. `draftwood bench` races the decoders."""
