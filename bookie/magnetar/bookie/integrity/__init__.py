"""Finding what was lost or damaged here, and getting it back from the other bookies."""
