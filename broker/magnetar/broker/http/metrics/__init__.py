"""Prometheus metrics of a broker: what is shown, how it is gathered, and how a page is written.

The hot path counts in plain integers. Everything here reads them when somebody asks, or once per
sample interval, in slices between which the event loop goes on with its work.
"""
