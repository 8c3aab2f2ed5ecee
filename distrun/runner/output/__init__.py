"""Printing: everything that ranks write and that the launcher has to say, on one console and in files.

`printer` is the one thread that prints. `lines` cuts the bytes of each rank into lines and decides where tags and line
ends go, and `sinks` are the places where bytes end up: a descriptor, a text stream of Python, a file per rank. Events
tell the job when everything is printed, and when nobody reads the output any more.
"""
