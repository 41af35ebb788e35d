"""Prometheus metrics of a broker: their values, the gathering, and the text of the page.

The hot path counts in plain integers. The code here reads them at a request, or once per sample
interval, in slices between which the event loop continues its work.
"""
