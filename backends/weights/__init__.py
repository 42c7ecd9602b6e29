"""Weights: files, shards, streaming from the disk, quantised layers."""
