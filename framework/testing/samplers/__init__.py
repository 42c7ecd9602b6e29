"""Proofs of somebody else's sampler."""
