"""The directories of a bookie: their owner, their usage, and its consequences."""
