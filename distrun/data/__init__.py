"""distrun for data."""
