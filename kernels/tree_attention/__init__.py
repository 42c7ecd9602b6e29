"""Attention of tree nodes to the committed text and to their own ancestors."""
