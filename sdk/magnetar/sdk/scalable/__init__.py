"""Scalable topics, and layouts of plain and partitioned ones: producers and consumers by segment.

See the README of the SDK, section Scalable topics.
"""
