"""What readers read with: replicas, last add confirmed, long polls, moved ledgers."""
