"""Block drafters: heads that read a target's features and guess a block of tokens in one pass.

`config` is what one is, `zlab` and `speculators` how its description is read and written, `head` its forward,
`context` what it keeps of texts that are written, `over_text` its forward over a known text, `files` its
folder.
The drafter over them is `strategies.drafters.block_drafter`.
"""
