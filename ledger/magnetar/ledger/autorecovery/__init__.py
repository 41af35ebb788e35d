"""Auto-recovery: finds lost bookies, and restores every ledger's write quorum of copies."""
