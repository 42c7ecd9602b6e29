"""One verifier a file."""
