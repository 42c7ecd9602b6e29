"""MTP layers: what large models are trained with to guess a token further, which transformers drops.

`families` says for each family which tensors and keys they are and which of transformers' classes run them,
`layout` reads a description, `head` is the forward, `checkpoint` reads and writes the files. The drafter is
`strategies.drafters.mtp`.
"""
