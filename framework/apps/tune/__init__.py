"""`draftwood tune`."""
