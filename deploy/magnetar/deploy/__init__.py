"""Composition: the `magnetar` command, standalone, single servers and the tour."""
