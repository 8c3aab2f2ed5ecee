"""`distrun predict`: how fast a job would be on other numbers of hosts, from what it measured of itself.

A job that ran with a timeline or a report leaves its `profile` in that file: how long a rank computes, and which
gradients are ready when. `reading` finds it there. `units` reads link speeds and delays, `link` those that the doctor
has measured. `model` computes one step at any number of hosts, in which the slowest rank is that of `order_statistics`;
`calibration` has the profile's own transfers tell how much of a link is used. `forecast` adds the error bar and what
bounds the step, `rendering` makes the table, and `command` is the command line.

One step of one rank is simulated, not a network: a finer simulation, of TCP or of switches, would need inputs that
nobody has. The share of the link that a program gets matters most, and that is measured. `model` repeats the constants
of the exchange, because the launcher imports nothing of the runtime; a test compares them.
"""
