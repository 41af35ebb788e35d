"""Tools that inspect and repair the files of a stopped bookie."""
