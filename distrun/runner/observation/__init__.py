"""Observing a job while it runs: brings the events of all ranks onto one clock, and feeds consumers with them.

`observation` requests reports from the agents and passes them to its consumers (the interface is in `consumer`), on its
own thread. `clocks` aligns the clocks of the hosts. The consumers are the live view (`live`), the report (`report`),
Prometheus metrics (`metrics`) and the timeline (`timeline`). `model` is what the first three share, and `profiling`
makes the profile that `prediction` reads. A job without consumers runs none of this.
"""
