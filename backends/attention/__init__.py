"""Attention over trees: keys and values of all rows, masks, and the tree kernel."""
