"""`draftwood view`: a trace as one page that needs no network."""
