"""distrun for tensorflow."""
