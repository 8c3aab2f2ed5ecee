"""Making the profile of a job, which `distrun predict` reads, from the events of all ranks. Pure: it reads no clock.

`steps` divides the steps of one rank. `reductions` merges all ranks' records of the operations in a step into batches
of gradients. `profiler` keeps a sample of the job's steps, and makes the profile.

The profile has medians of whole steps, since a prediction is about the usual step. It does not have the speed of the
link: what operations reach is a lower bound, and a guess would be taken for a measurement.
"""
