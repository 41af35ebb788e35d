"""Indexes: locations of entries in the entry logs, and ledger states."""
