"""Printing: everything that ranks write and that the launcher has to say, on one console and in files.

`printer` is the one thread that prints. `lines` cuts the bytes of each rank into lines and decides where tags and line
ends go, and `sinks` are the places where bytes end up: a descriptor, a text stream of Python, a file per rank. The job
hands output in and is told by events when it is printed, or when nobody reads it any more.
"""
