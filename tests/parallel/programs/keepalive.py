"""A connection gives another host up after DISTRUN_KEEPALIVE seconds without an answer, by the kernel's options."""

import os
import socket

import numpy as np

import distrun

distrun.init()
distrun.allreduce(np.ones(100_000, np.float32))
probes = []
for name in os.listdir("/proc/self/fd"):
    try:
        with socket.socket(fileno=os.dup(int(name))) as connection:
            connection.getpeername()
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                probes.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT))
    except OSError:  # something else, or a listener
        continue
assert len(probes) >= 2  # for control, and for data
assert {*probes} == {int(os.environ["DISTRUN_KEEPALIVE"])}, probes  # one a second
distrun.barrier()  # the other rank's connections are open until this one has looked
distrun.shutdown()
