"""Orders of siblings, one a file, with what each is worked out by."""
