"""`draftwood generate`: texts of one prompt or of a file of prompts."""
