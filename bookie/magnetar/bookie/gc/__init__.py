"""Garbage collection: dead ledgers, entry logs without use, compaction."""
