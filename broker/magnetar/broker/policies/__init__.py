"""Tenants, namespaces and policies: what may exist, and how each topic is to be treated.

`model.py` has their values, `table.py` a row for each and what counts for one topic, `registry.py`
keeps and follows both.
"""
