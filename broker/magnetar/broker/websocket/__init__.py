"""Pulsar's WebSocket interface: `/ws/v2/{producer,consumer,reader}/…` and `/ws/v3/consumer/…`.

A session is a client of the SDK behind a web socket, at whichever broker owns the topic. What comes
in and goes out is decided by cores without I/O; `connection.py` has the sockets, `service.py` the
clients. Source: WebSocket sheet.
"""
