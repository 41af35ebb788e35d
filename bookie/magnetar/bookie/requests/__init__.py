"""Request handling of a bookie: adds, reads, fences, LACs."""
