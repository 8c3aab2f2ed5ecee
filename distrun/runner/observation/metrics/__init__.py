"""Metrics of a running job for Prometheus: a page of text for every client that asks.

`address` reads where to listen, `text` writes the page, `server` gives it, and `consumer` keeps it up to date.
"""
