"""Agents over SSH, by paramiko.

`ssh` starts agents. `ssh_transport` makes authenticated connections, `known_hosts` finds the keys of hosts for that,
and `ssh_program` runs a module of distrun in a channel of a connection.
"""
