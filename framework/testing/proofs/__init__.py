"""Exact enumeration, and the proofs that stand on it."""
