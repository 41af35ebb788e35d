"""The HTTP interface besides health and metrics: lookup, brokers, namespaces, topics; one file
each.

Modules that define routes are imported at the first request that needs them: FastAPI is slow to
import.
"""
