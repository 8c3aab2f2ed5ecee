"""Printing: the output of ranks and the launcher's own lines, on one console and in files.

`printer` is the one thread that prints. `lines` cuts the bytes of each rank into lines and places tags and line ends.
`sinks` are the destinations: a descriptor, a text stream of Python, a file per rank. `panel` keeps lines at the bottom
of the terminal, `hidden` selects output that is not shown, and `recent` keeps the last of it for `distrun logs`. Events
notify the job when everything is printed, and when the reader of the output is gone.
"""
