"""Passes that are captured, and passes over several rows in one."""
