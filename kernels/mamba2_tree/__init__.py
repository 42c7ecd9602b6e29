"""Mamba-2 along a tree, without a state for any node."""
