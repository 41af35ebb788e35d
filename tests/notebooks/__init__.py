"""The notebooks of docs/examples: running them, and keeping what they show."""
