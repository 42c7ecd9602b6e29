"""A transformers model as a pass, and the backend that runs it."""
