"""Features that a topic may host beside its log; each is one object per topic."""
