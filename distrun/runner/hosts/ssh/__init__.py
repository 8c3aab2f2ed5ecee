"""Logins by SSH: `ssh` has paramiko do it, whose connection is a `ssh_transport`, and `ssh_program` the program `ssh`.

`known_hosts` checks the keys of hosts.
"""
