"""Draft trees: their growth, their arrays, and their accepted paths."""
