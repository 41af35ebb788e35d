"""Messages that are delayed."""
