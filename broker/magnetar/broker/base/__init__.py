"""The lowest layer of the broker: errors, settings, names, entries and frames."""
