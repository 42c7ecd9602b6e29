"""Trees judged from their leaves up, or siblings in class order, from a tape of uniforms."""
