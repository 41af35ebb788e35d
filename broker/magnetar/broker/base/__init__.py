"""What every part of the broker stands on: errors, settings, names, entries and frames."""
