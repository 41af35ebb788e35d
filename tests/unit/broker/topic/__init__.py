"""What keeps topics in order."""
