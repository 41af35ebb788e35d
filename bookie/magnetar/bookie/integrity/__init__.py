"""Integrity: finds lost and damaged entries, and restores them from the other bookies."""
