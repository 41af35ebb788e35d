"""Bundles of topics: how a namespace is divided into them, who owns them, and when they move."""
