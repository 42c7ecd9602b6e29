"""Distributions of target and draft: temperature, filters, processors and constraints."""
