"""The HTTP interface beside health and metrics: lookup, brokers, namespaces, topics; one file each.

The files that define routes are imported when the HTTP server starts: FastAPI takes its time.
"""
