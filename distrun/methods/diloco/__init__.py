"""Outer steps: hosts train independently and exchange their progress from time to time (DiLoCo, local SGD).

Between two exchanges, each host moves its parameters away from the *anchor*, which is the same on all hosts. An outer
step averages the hosts' differences from the anchor, the outer gradient, and moves the anchor by it with Nesterov
momentum. (A. Douillard and others: DiLoCo: Distributed Low-Communication Training of Language Models, 2023. With a rate
of 1 and without momentum it is local SGD: S. U. Stich: Local SGD Converges Fast and Communicates Little, 2018.)
Parameters are divided into fragments, which are exchanged in turn, and training continues during an exchange. (A.
Douillard and others: Streaming DiLoCo with Overlapping Communication, 2025.)

The faces share this package. `settings` checks the user's settings. `fragments` defines which fragment is due at which
step, and which parameters it has. `parameters` is the interface of a face's model, and the arithmetic on its arrays.
`optimizer` takes the outer steps, and `merging` makes all hosts equal at once.
"""
