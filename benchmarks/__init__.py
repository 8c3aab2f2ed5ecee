"""Measurements of distrun beside comparable systems: python -m benchmarks --help, or scripts/bench --help.

allreduce, many, step   operations of two ranks, beside Open MPI and gloo
launch                  starting processes
frameworks/             training steps of TensorFlow, JAX and Keras; the backend of torch.distributed
elastic/                recovery from a killed rank, and the regrouping of many
chaos/                  many kills, one after the other, and a judge of whether anything was lost
scale/                  many ranks: the coordinator's work by their number; a simulator, beside real ranks
hosts/                  two hosts, which are network namespaces
gpu/                    NVIDIA GPUs
observation/            what recording events costs, and what autotuning brings
prediction/             predictions beside own runs and published tables
auto/                   plain scripts under --auto
results/                figures that the documentation has, as `--json` writes them
support/                tables, child processes, ranks and rounds of measurements
"""
