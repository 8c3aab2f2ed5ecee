"""`DISTRUN_SCALARS`: figures about the job beside the script's own, in TensorBoard and MLflow where it uses them.

`shares` makes figures of the events of this rank. `instances` finds what a script has made of a class, without asking
it. `tensorboard` and `mlflow` write, each where the script does. `writing` is the thread of rank 0 that does all this.
"""
