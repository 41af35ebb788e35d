"""Lifetime of messages: trimming, retention, expiry, quotas, and moving cursors by hand."""
