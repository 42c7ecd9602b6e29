"""The terminal: options, progress, errors, interrupts, and what is printed."""
