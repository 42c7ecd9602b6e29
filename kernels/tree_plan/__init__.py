"""Drafted trees of several rows, as kernels read them."""
