"""The parts of the managed log."""
