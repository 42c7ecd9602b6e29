"""What every other room uses: errors, validators, locks, devices and small helpers."""
