"""Cooperation of several brokers: leases of bundles, balance, partitions and health."""
