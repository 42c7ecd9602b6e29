"""Draft trees: how they grow, how they are held in arrays, and what of them is accepted."""
