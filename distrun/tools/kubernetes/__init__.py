"""`distrun k8s`: a job's manifests for Kubernetes, printed, or applied and followed to the end.

`manifests` makes them, as plain data, and `yaml_text` formats them, so that printing needs no other package. `bundle`
packs the files for pods without distrun or without the code, and `arrival` prepares a pod with them. `client` calls the
cluster's API, `following` applies a job and follows it to its end, `logs` shows what it prints, and `reasons` explains
why a pod does not start, or has ended. The pods run `distrun agent` (`runner.hosts.joining`).
"""
