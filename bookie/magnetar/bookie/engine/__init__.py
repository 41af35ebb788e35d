"""The engine of the ledger storage: caches, flushes and reads over entry logs and index."""
