"""Faults, interrupts, long texts, kills and hostile files; whatever happens, the next call is as good as new.

`python -m tests.soak` runs all of it and prints what was done and found.
"""
