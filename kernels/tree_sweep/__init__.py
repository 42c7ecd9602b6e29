"""One pass of a tree's verification over the vocabulary."""
