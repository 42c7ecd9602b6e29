"""Methods as a whole: recipes of the literature, and methods that were tuned on a machine."""
