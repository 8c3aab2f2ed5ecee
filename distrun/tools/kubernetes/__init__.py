"""`distrun k8s`: a job's manifests for Kubernetes, printed, or applied and followed to the end.

`manifests` makes them, as plain data, and `yaml_text` writes them down, so that printing needs no package. `bundle` is
what is brought into pods that have no distrun or no code, and `arrival` prepares a pod with it. `client` talks with the
cluster's API, `following` applies a job and says how it has ended, `logs` shows what it prints, and `reasons` puts into
a sentence why a pod does not start, or has ended. What runs in the pods is `distrun agent` (`runner.hosts.joining`).
"""
