"""Auto-recovery: lost bookies are found, and every ledger regains its write quorum of copies."""
