"""Where entries lie in the entry logs, and the ledger states."""
