"""`draftwood distil`."""
