"""Helpers of Horovod's launcher that scripts import: variables, hosts and timeouts."""
