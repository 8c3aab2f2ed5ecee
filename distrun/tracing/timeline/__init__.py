"""Timelines: from the events of all ranks to a file that Perfetto and chrome://tracing open.

`timeline` takes events and keeps them until all ranks have told theirs; `stragglers` knows which rank was the last to
submit an operation; `rank_rows` makes the slices of a rank's rows of its events; `thinning` keeps the file within its
limit; `trace_file` writes it, complete at any moment. The launcher uses it for all ranks of a job, and ranks that no
launcher of ours has started for themselves: `options` are the choices of both.
"""
