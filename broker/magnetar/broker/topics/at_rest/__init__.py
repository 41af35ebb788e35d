"""Upkeep of stored topics that are not loaded."""
