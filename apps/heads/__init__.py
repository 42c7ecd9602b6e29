"""`draftwood check-head` and `draftwood convert-head`."""
