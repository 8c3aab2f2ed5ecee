"""The profile of a job, which `distrun predict` reads, from the events of all ranks while it runs. Pure: no clock.

`steps` divides the steps of one rank. `reductions` has what all ranks together tell of the operations of a step, which
`gradients` makes batches of gradients of. `profiler` keeps some steps of the whole job, and makes the profile.

The profile has medians of whole steps, since a prediction is about the usual step. It does not have the speed of the
link: what operations reach is a lower bound, and a guess would be taken for a measurement.
"""
