"""What consumers can do beyond one topic and one message after the other."""
