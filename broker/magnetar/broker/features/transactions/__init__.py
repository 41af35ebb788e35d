"""Transactions: coordinators, hidden messages of topics, and pending acknowledgements."""
