"""What a topic may have beside its log: each one object per topic."""
