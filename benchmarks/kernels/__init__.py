"""What times kernels, passes and verification, on the machine that it runs on."""
