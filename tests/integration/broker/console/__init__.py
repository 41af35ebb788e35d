"""The console in a real browser, which all files of this package share."""
