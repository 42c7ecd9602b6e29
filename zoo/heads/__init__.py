"""Heads for a target: made, trained on what it writes, and measured by depth.

`known_text` reads a text with target and head, `eagle3` makes and trains a head, and `agreement` says how
often it follows the target. `draftwood train` and `draftwood check-head` are the commands. `widened` fits a
head to a widened target.
"""
