"""Two topics of the real core against a plain model of a log with cursors, command by command."""
