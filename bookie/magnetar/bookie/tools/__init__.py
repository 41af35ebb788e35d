"""Looking into the files of a bookie that does not run, and mending them."""
