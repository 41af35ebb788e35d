"""The parts of the page index: file format, trees of cells, cache, files, double write."""
