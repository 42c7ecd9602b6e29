"""Children of many nodes drawn without replacement, from a tape of uniforms."""
