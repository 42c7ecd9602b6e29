"""One tree policy a file."""
