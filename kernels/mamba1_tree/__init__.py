"""Mamba-1 along a tree, level by level."""
