"""Cursors: what a subscription has acknowledged, in memory and durable."""

from magnetar.cursors.ack_state import AckRange, AckSnapshot, AckState, BatchAck, LogShape

__all__ = ["AckRange", "AckSnapshot", "AckState", "BatchAck", "LogShape"]
