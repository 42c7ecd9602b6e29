"""A window of two siblings, of which the under-proposed one is tried first."""
