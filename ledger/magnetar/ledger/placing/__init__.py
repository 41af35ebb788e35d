"""Placement over racks and zones."""
