"""The nodes of a pass: their places in the uncommitted region, and what they see."""
