"""Entry logs: their format, writers and readers."""
