"""The structure of a model: its layers, windows, context and forward."""
