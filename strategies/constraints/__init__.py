"""Grammars of other packages as constraints on what may follow a text; the extra `grammar` brings them."""
