"""Bundles of topics: how a namespace is cut into them, who gets them, and when they move."""
