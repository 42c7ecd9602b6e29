"""Toy models, small strategies and random inputs for proofs."""
