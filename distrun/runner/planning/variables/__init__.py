"""The environments that ranks are born with.

`environ` takes the launcher's environment, without traces of other launches, and adds what `-x` asks for. `job` adds
what the request says: settings, the listed GPUs of a host, shares of its cores. `ranks` makes the variables that are a
rank's own from the places of all ranks, for the only world of a job and for each of an elastic one, and `tf_config` the
value of TF_CONFIG. All of it is pure.
"""
