"""`draftwood prove` and `draftwood check`."""
