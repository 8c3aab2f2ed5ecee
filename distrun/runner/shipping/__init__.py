"""Bringing distrun itself, an environment for the ranks, and the user's code to other hosts that lack them.

The process that becomes the agent of a host prepares the host first: it requests what is missing from the launcher,
which answers (`runner.hosts.introduction`). A host that has the same distrun, in a job that ships nothing, requests
nothing.

- On the launcher: `package` packs the running distrun. `requirements` parses the requirements of an environment.
  `snapshot` takes the state of a user's folder as a `manifest`, where `ignore` leaves out the same files as git, and
  `digests` caches the digests of unchanged files. `delivery` is all of this for one launch, with the answers to hosts.
  `options` are the command-line options.
- On the host: `first_stage` is sent as text and looks for distrun. `second_stage`, also sent, requests what is missing.
  `cache` is the folder that keeps it, and `blobs` are contents of files in the cache. `trees` writes the user's code,
  and `environment` makes a virtual environment. `arrived` gives the agent, and through it the ranks, the paths of all
  this.
"""
