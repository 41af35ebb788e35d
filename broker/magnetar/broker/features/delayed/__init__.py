"""Delayed delivery: messages that Shared and Key_Shared consumers get when they are due.

The entries and the cursors are the truth. The index beside them only saves reads: what is not in
it is found again when a dispatcher comes by.
"""
