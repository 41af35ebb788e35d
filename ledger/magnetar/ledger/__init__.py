"""The ledger store's client side: metadata, wire protocol, quorum rules, writer, reader, log."""
