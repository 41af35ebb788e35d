"""Keeping and dropping: trimming, retention, expiry, quotas, and moving cursors by hand."""
