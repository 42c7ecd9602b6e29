"""The flows of tokens at nodes whose siblings are judged as one set."""
