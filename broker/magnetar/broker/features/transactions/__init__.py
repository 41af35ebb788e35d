"""Transactions: coordinators, what is hidden on topics, acknowledgements that wait."""
