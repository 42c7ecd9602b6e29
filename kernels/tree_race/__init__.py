"""Trees judged from their leaves up, siblings as one set, from a tape of uniforms and times."""
