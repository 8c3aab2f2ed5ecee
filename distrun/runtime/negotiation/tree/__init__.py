"""The negotiation of many hosts: a leader on each host speaks for the host's ranks, and for the hosts below it in a
tree.

`transport.control_tree` defines each rank's leader. A leader forwards what goes up and down (`control_plane`), in
`envelopes`. While all ranks below it submit the same operations in the same order, its `aggregator` merges their
messages into one. So rank 0, and each leader, receives one message per child for an operation. Submissions that differ
go up unchanged, rank by rank, so rank 0 sees what it would see without leaders, and reports the same. Before it reports
which ranks are missing, a `survey` makes the leaders send up what they still hold back.
"""
