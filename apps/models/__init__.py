"""The models, methods and prompts that a command is given."""
