"""Topics as they are stored, and how they are read: what reading by Arrow and by Spark share.

It plans slices, reads entries from bookies, object stores and brokers, and makes Arrow rows of
their messages. It knows neither Spark nor the rest of `magnetar.arrow`: decision 38.
"""
