"""What may follow a text: grammars of other packages as constraints; the extra `grammar` brings them."""
