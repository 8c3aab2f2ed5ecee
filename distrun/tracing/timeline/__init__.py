"""Timelines: from the events of all ranks to a file for Perfetto and chrome://tracing.

`timeline` takes events and keeps them until all ranks have delivered theirs. `travel` divides an operation into phases,
and knows which rank was the last to submit it. `rank_rows` makes the slices of a rank's rows from its events.
`thinning` keeps the file within its limit. `trace_file` writes it, complete at any moment. The launcher uses this for
all ranks of a job, and ranks without distrun's launcher use it themselves. `options` are the choices in both cases.
"""
