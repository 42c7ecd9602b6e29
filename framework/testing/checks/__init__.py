"""The checks of a drafter, a policy, a verifier, a backend or a source of randomness."""
