"""The environment variables that ranks are started with.

`environ` takes the launcher's environment, without variables of other launches, and adds what `-x` asks for. `job` adds
what the request asks for: settings, the listed GPUs of a host, shares of its cores. `ranks` makes the variables of each
rank from the locations of all ranks, for the one world of a job or each generation of an elastic one. `tf_config` makes
the value of TF_CONFIG. All of it is pure.
"""
