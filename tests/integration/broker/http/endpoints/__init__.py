"""The table of all endpoints of Pulsar's interface, and what is asked of each."""
