"""Pulsar's WebSocket interface: `/ws/v2/{producer,consumer,reader}/…` and `/ws/v3/consumer/…`.

A session is an SDK client behind a web socket; it reaches whichever broker owns the topic. Cores
without I/O decide what comes in and goes out. `connection.py` has the sockets, `service.py` the
clients. Source: WebSocket sheet.
"""
