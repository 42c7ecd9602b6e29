"""Recurrent layers of transformers models: what they keep during decoding, and their mixers over it."""
