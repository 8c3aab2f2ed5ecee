"""Scripts that do not use distrun, unchanged on two hosts: PyTorch, JAX and TensorFlow with their own collectives, and
plain ones of a single process under `--auto`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

TORCH = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
print("RESULT", dist.get_rank(), dist.get_world_size(), weights.numpy().tobytes().hex(), flush=True)
dist.barrier()  # torch may abort when a peer is gone before
os._exit(0)  # and, rarely, in destroy_process_group: "terminate called without an active exception"
"""

JAX = """
import os
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

{initialize}
total = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0])).sum()
print("RESULT", jax.process_index(), jax.process_count(), float(total), flush=True)
"""
JAX_ALONE = "jax.distributed.initialize()"
JAX_TOLD = 'jax.distributed.initialize(num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"]))'

MIRRORED = """
import json, os
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

@tf.function
def step():
    def replica():
        mine = tf.fill([4], float(rank + 1))
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, mine)
    return strategy.run(replica)

total = strategy.experimental_local_results(step())[0].numpy()
print("RESULT", rank, strategy.num_replicas_in_sync, float(total[0]), flush=True)
"""

SERVED = """
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
    )
    print("RESULT", resolver.task_type, resolver.task_id, flush=True)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)

@tf.function
def step():
    weight.assign_add(1.0)

for _ in range(6):
    coordinator.schedule(step)
coordinator.join()
print("RESULT", "chief", float(weight.numpy()), flush=True)
"""

PLAIN_TORCH = """
import os, socket, sys
import torch

folder = sys.argv[1]
torch.manual_seed(0)
x = torch.randn(120, 6)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 12, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
log = open(os.path.join(folder, f"log-{socket.gethostname()}-{os.getpid()}.txt"), "w")
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(loss.item(), file=log)
log.close()
torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
model.load_state_dict(torch.load(os.path.join(folder, "model.pt")))
model.eval()
with torch.no_grad():
    print("RESULT", f"{torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item():.4f}", flush=True)
"""

PLAIN_KERAS = """
import os, socket, sys
import keras
import numpy as np

folder = sys.argv[1]
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(120, 6)).astype("float32")
y = x.sum(1, keepdims=True)
layers = keras.layers
model = keras.Sequential([layers.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), "mse")
best = os.path.join(folder, "best.weights.h5")
callbacks = [
    keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True, save_weights_only=True),
    keras.callbacks.CSVLogger(os.path.join(folder, f"log-{socket.gethostname()}-{os.getpid()}.csv")),
]
model.fit(x, y, batch_size=12, epochs=3, verbose=0, callbacks=callbacks)
model.load_weights(best)
model.save(os.path.join(folder, "model.keras"))
with open(os.path.join(folder, f"end-{socket.gethostname()}.txt"), "w") as file:
    file.write("done")
print("RESULT", f"{model.evaluate(x, y, verbose=0):.4f}", flush=True)
"""

# There is no name server in the namespaces; libraries that ask for names give up sooner so.
_NO_NAMES = ("-x", "RES_OPTIONS=timeout:1 attempts:1")


_TIMEOUT = 240.0  # seconds; importing TensorFlow four times on two busy cores takes a minute


def needs(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'distrun[dev]'")


@pytest.fixture
def results(distrun):
    """Runs a command on two hosts with two ranks each; what its ranks have printed as results."""

    def run(*arguments):
        job = distrun("-H", "alpha:2,beta:2", "--no-tag-output", *_NO_NAMES, *arguments)
        job.ended(0, _TIMEOUT)
        found = re.findall(r"^RESULT (.*)$", job.stdout.data.decode(), re.MULTILINE)
        return sorted(found)

    return run


@pytest.fixture
def named(tmp_path, alpha, beta):
    """Wraps a command of ranks, on hosts that know their own names, as real ones do; JAX's Gloo asks for its own."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{alpha.address} alpha\n{beta.address} beta\n")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed: apt-get install util-linux")
    shell = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    return lambda *command: ("unshare", "--mount", "sh", "-c", shell, "sh", *command)


def test_torch_ddp(results, python):
    needs("torch")
    found = [line.split() for line in results(*python(TORCH))]
    assert [line[:2] for line in found] == [[str(rank), "4"] for rank in range(4)]
    assert len({line[2] for line in found}) == 1


@pytest.mark.parametrize(("flags", "initialize"), [((), JAX_TOLD), (("--openmpi-env",), JAX_ALONE)])
def test_jax_distributed(results, python, named, flags, initialize):
    needs("jax")
    assert results(*flags, *named(*python(JAX.format(initialize=initialize)))) == [
        f"{rank} 4 10.0" for rank in range(4)
    ]


def test_tensorflow_multi_worker_mirrored(results, python):
    needs("tensorflow")
    assert results("--tf-config", *python(MIRRORED)) == [f"{rank} 4 10.0" for rank in range(4)]


def test_tensorflow_parameter_servers_and_workers_are_ended_after_the_chief(results, python):
    needs("tensorflow")
    assert results("--tf-config", "--ps", "1", *python(SERVED)) == ["chief 6.0", "ps 0", "worker 0", "worker 1"]


@pytest.mark.parametrize(
    ("module", "script", "files"),
    [
        ("torch", PLAIN_TORCH, ["log-alpha", "model.pt"]),
        ("keras", PLAIN_KERAS, ["best.weights.h5", "end-alpha.txt", "log-alpha", "model.keras"]),
    ],
)
def test_a_plain_script_under_auto(results, tmp_path, module, script, files):
    needs(module)
    needs("tensorflow" if module == "keras" else module)
    folders = [tmp_path / name for name in ("alone", "together")]
    for folder in folders:
        folder.mkdir()
    program = tmp_path / "train.py"
    program.write_text(script)
    environ = {**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(program)]
    alone = subprocess.run([*command, str(folders[0])], env=environ, capture_output=True, text=True, check=True)
    found = results(
        "--auto", "-x", "KERAS_BACKEND=tensorflow", "-x", "CUDA_VISIBLE_DEVICES=", *command, str(folders[1])
    )
    assert [f"RESULT {line}" for line in found] == alone.stdout.splitlines()[-1:], "rank 0 alone prints"
    written = sorted(path.name for path in folders[1].iterdir())
    assert len(written) == len(files), written
    assert all(name.startswith(start) for name, start in zip(written, files, strict=True)), written


@pytest.mark.gate
def test_tf_config_on_one_host(output, python):
    printed = output("-np", "2", "--tf-config", "--no-tag-output", "sh", "-c", "echo $TF_CONFIG")
    assert printed.count(b'"127.0.0.1:') == 4
