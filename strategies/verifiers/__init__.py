"""One verifier a file. `walk.py` is the walk that six of them are; `orders` and `batched` hold its parts."""
