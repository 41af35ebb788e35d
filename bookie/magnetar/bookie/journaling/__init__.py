"""The journal: it makes adds durable. Its replay, and the checkpoints that shorten it."""
