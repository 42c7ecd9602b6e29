"""Mistakes that others shipped, each made again in a correct part: the harness must see every one.

`python -m tests.mutations`, from the root of the repository, prints what betrayed each.
"""

from tests.mutations.suite import MUTATIONS

__all__ = ["MUTATIONS"]
