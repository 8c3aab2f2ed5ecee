"""The launcher's decisions: whatever happens to a job comes in as an event, and one state machine returns actions.

`events` are the things that can happen, as plain data. Agents, the printer and signal handlers post them to one queue,
and `runner.job` takes them from there. `policy` turns events and the time into `actions`, without any effect, so its
tests are histories of events. `connecting` is its list of hosts that are not ready yet. `elastic` has the policy of
elastic jobs. `backoff` is how long to wait after failures in a row. `signals` turns signals to the launcher into
events. The first `failure` ends a job, and `failure_report` describes it to the user, with the last lines that the
failed rank wrote to stderr.
"""
