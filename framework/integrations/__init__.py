"""Ways in from where people are already: lm-eval's harness, and `generate`'s hub form."""
