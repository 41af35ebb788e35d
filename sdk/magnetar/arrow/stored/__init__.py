"""Topics as they are stored, and how to read them: the common part of the Arrow and Spark readers.

This package plans slices, reads entries from bookies, object stores and brokers, and makes Arrow
rows of their messages. It knows neither Spark nor the rest of `magnetar.arrow`: decision 38.
"""
