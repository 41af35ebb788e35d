"""The two halves of a recovery: reading the tail, writing it back."""
