"""Heads that draft from their target's features, in the formats that others write.

`config` is what a head is, `eagle3` its forward, `unrolled` that over a known text, `pair_cache` its keys
during decoding, `formats` the files. The drafters over them are in `strategies.drafters`.
"""
