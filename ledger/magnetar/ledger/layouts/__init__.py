"""Layouts of ledgers in the metadata store, and sources of ledger ids."""
