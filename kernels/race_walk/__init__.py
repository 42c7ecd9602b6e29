"""The walk of a row over the allowances of its tree, and its extra token."""
