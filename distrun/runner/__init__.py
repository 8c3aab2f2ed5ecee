"""The launcher: it plans which rank runs where, starts the ranks through one agent per host, and supervises them."""
