"""`draftwood train`."""
