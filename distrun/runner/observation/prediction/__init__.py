"""`distrun predict`: the speed that a job would have on other numbers of hosts, from its own measurements.

A job that ran with a timeline or a report leaves its `profile` in that file: how long a rank computes, and when each
batch of gradients is ready. `reading` finds it there. `units` parses link speeds and delays, and `link` chooses the
network: given, measured by `distrun doctor`, or assumed. `model` computes one step at any number of hosts, with its
slowest rank. `calibration` estimates from the profile's own transfers how much of a link is used. `forecast` adds the
error bar and what bounds the step.

One step of one rank is simulated, not a network: a finer simulation, of TCP or of switches, would need inputs that
nobody has. The share of the link that a program gets matters most, and that is measured. `model` repeats the constants
of the exchange, because the launcher imports nothing of the runtime; a test compares them.
"""
