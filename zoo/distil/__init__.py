"""Distil a draft from its target, on text that the target wrote itself.

`draftwood distil` is the command. `rows` has the target write text, `losses` says what the draft learns
from it, `training` trains in a folder that can be left and taken up, and `fit` measures how well the
draft follows the target.
"""
