"""Exact enumeration, and the proofs that use it."""
