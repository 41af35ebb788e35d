"""Settings of the broker, one module per subject; `broker.py` combines them."""
