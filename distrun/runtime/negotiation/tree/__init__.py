"""The negotiation of many hosts: leaders of hosts speak for all ranks of theirs, and of the hosts below them.

Which rank is whose leader is told by `transport.control_tree`. A leader passes on what goes up and down
(`control_plane`), in `envelopes`. As long as all ranks below it submit the same operations in the same order, their
`aggregator` makes one message of theirs, so that rank 0 hears of each operation once per child, and each leader, too.
What differs goes up as it is, rank by rank, so rank 0 sees all that it sees without leaders, and says the same. Before
it tells anybody which ranks are missing, a `survey` has the leaders pass on what they still hold.
"""
