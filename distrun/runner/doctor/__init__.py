"""`distrun doctor`: what stands between this machine, the other hosts and a job, found before the job is started.

A small program, the probe, is started on every host the way an agent would be. It looks around there, and it measures the
network with the probes of the other hosts.
"""
