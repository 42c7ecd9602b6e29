"""The laws by which a tree draws the children of a node, and the randomness that draws them."""
