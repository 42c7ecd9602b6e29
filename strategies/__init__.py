"""Strategies: drafters, policies, verifiers, and the named methods assembled from them."""
