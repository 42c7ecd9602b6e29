"""draftwood beside other packages that make heads; each runs where the package is installed."""
