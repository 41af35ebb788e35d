"""Parts of the ledger reader: replicas, last add confirmed, long polls, moved ledgers."""
