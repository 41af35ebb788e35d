"""The storage server: journal, ledger storage, fencing, checkpoints."""
