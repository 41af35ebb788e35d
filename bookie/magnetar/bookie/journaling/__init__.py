"""The journal: what makes an add durable, its replay, and the checkpoints that shorten it."""
