"""`draftwood bench`: strategies on one's own models and prompts, measured side by side."""
