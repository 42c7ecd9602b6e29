"""Makes the backend of a model object, a folder or a hub name."""
