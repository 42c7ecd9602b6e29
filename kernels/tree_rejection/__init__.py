"""Recursive rejection down a tree, from a tape of uniforms."""
