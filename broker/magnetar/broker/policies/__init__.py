"""Tenants, namespaces and policies: what may exist, and how each topic is to be treated.

`model.py` is what is stored, `effective.py` what counts for one topic, `registry.py` where both are
kept and followed.
"""
