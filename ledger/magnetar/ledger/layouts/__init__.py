"""Where ledgers lie in the metadata store, and where their ids come from."""
