"""Parts of consumers: one or several topics, chunks, dead letters, handlers."""
