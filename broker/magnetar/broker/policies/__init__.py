"""Tenants, namespaces and policies: what may exist, and how each topic is to be treated.

`model.py` has their values. `table.py` has a row for each policy, and merges the levels for a
topic. `registry.py` stores and follows both.
"""
