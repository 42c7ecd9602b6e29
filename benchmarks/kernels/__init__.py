"""Times of kernels, passes and verification, on the machine that runs it."""
