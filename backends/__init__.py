"""States of models during decoding: what a target and a drafter that is a model run on."""
