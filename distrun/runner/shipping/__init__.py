"""Bringing to other hosts what they lack: distrun itself, an environment for the ranks, and the user's code.

A host is prepared by the process that then becomes the agent there, before it is the agent: it asks the launcher for
what is missing, and the launcher answers (`runner.hosts.introduction`). A host that has the same distrun, in a job
that ships nothing, asks nothing.

- On the launcher: `package` is distrun as it runs here; `requirements` are those of an environment; `snapshot` is the
  state of a folder of the user's, of which `ignore` leaves out what git would, and `digests` remembers what has been
  read before; `delivery` is all of it for one launch, with the answers to hosts; `options` are those of users.
- On the host: `first_stage` is sent as text and looks for distrun; `second_stage`, sent or imported, asks for what is
  missing; `cache` is the folder that keeps it, `blobs` are contents of files there; `trees` puts the user's code there
  and `environment` makes a virtual environment. `arrived` tells the agent, and through it the ranks, where everything
  is.
"""
