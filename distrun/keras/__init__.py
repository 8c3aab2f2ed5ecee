"""distrun for keras."""
