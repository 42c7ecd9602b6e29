"""A real-gated linear recurrence along a tree."""
