"""Changes of a model between calls, in random order: a used decoder gives what a fresh one gives (law R)."""
