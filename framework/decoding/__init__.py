"""The round loop, its rows and sessions, and the decoder that people call."""
