"""Metrics of a running job for Prometheus: an HTTP server with one page of text.

`address` parses the address to listen on, `text` writes the page, `server` serves it, and `consumer` keeps it up to
date.
"""
