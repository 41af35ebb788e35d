"""Settings of the broker, by what they are about; `broker.py` puts them together."""
