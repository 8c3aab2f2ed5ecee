"""`distrun completion`: `command` prints or installs one of the `scripts` for shells, which ask for `candidates`."""
