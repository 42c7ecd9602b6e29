"""Causal convolution along a tree."""
