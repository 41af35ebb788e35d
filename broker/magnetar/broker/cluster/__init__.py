"""A broker among several: leases of bundles, balance, partitions and health."""
