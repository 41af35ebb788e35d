"""Garbage collection: dead ledgers, unused entry logs, compaction."""
