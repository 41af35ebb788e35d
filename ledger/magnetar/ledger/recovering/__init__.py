"""Parts of a ledger recovery: reading the tail, and writing it back."""
