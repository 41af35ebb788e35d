"""What a bookie does with requests: adds, reads, fences, LACs."""
