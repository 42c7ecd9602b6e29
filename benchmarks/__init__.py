"""Measurements: `python -m benchmarks` lists them. `draftwood bench` compares decoders."""
