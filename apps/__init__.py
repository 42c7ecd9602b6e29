"""The command line: `draftwood demo`, `generate`, `strategies`. It uses only what is public."""
