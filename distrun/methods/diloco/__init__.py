"""Outer steps: hosts that train by themselves and exchange what they have learned now and then (DiLoCo, local SGD).

Between two exchanges each host moves its parameters away from the *anchor*, which all hosts have alike. An outer step
averages how far they went, which is the outer gradient, and moves the anchor by it with Nesterov momentum. (A.
Douillard and others: DiLoCo: Distributed Low-Communication Training of Language Models, 2023. With a rate of 1 and
without momentum it is local SGD: S. U. Stich: Local SGD Converges Fast and Communicates Little, 2018.) Parameters are
divided into fragments, which take turns, and training goes on while one travels. (A. Douillard and others: Streaming
DiLoCo with Overlapping Communication, 2025.)

The room, shared by the faces: `settings` checks what a user asks for; `schedule` says which fragment is due at which
step, `fragments` which parameters it has; `arithmetic` is Nesterov's, on arrays of numpy and torch alike; `parameters`
is what a face shows of its model. `optimizer` takes the outer steps, and `merging` makes all hosts the same at once.
"""
