"""Parts of the ledger writer: pending adds, ensemble changes, follow-up."""
