"""Random calls of transformers' `generate()`, with and without `custom_generate`.

`python -m tests.generate_fuzz --calls 3000` prints what came of each. The text must be the same, or one
sentence must say what is not served.
"""
