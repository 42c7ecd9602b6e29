"""Errors, validators, locks, devices and small helpers that every other room uses."""
