"""Dispatchers: which entries go to which consumer of a subscription, one file per type."""
