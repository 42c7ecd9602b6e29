"""Moves the accepted nodes' keys and values down to the committed ones, in place."""
