"""`draftwood demo`."""
