"""`distrun completion`: `command` prints or installs the script of a shell, which asks `candidates` at each Tab."""
