"""The gated delta rule along a tree, without a state for any node."""
