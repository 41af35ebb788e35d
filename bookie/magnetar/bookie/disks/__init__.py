"""The directories of a bookie: whose they are, how full they are, what follows from that."""
