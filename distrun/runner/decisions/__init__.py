"""Deciding: everything that happens to a job comes in as an event, and one state machine says what is to be done.

`events` are the things that can happen, as plain data; agents, the printer and signal handlers post them to one queue,
and `runner.job` takes them from there. `policy` turns events and the time into `actions`, without any effect, so its
tests are histories of events; `connecting` is its list of hosts that are not ready yet. `elastic` has the policy of
elastic jobs. `signals` turns signals to the launcher into events. The first `failure` ends a job, and `failure_report`
tells the user of it, with the last lines that the failed rank wrote to stderr.
"""
