"""The kinds of backends: attention, recurrent, by paths, packed, recomputed."""
