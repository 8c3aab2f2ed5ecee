"""Metrics of a running job for Prometheus: an HTTP server with one page of text.

`server` parses the address to listen on, and serves the page. `consumer` writes it.
"""
