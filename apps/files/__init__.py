"""Files that commands read and write: text, datasets, journals, traces."""
