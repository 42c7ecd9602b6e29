"""Tells what is wrong with a law, a tree or a strategy, and how far from right it is."""
