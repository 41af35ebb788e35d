"""Delayed delivery: messages that Shared and Key_Shared consumers get when they are due.

The entries and the cursors are the truth. The index beside them only saves reads: a dispatcher that
reads an entry missing from the index adds it again.
"""
