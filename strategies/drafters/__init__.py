"""One drafter a file."""
