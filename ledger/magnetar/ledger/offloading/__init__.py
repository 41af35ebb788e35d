"""Closed ledgers in an object store."""
