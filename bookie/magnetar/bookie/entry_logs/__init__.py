"""Entry logs: the format, writing and reading them."""
