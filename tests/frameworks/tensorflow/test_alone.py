"""The TensorFlow face in a world of one, and the parts of it that need no world."""

from __future__ import annotations

import ctypes
import logging
import pickle
import subprocess
import sys

import pytest
import tensorflow as tf

import distrun.tensorflow as hvd
from distrun.contract.settings import TENSORFLOW_OP
from distrun.errors import JobAbortedError, MismatchError, NotInitializedError, UsageError
from distrun.graphs.signatures import canonical_name
from distrun.graphs.tensorflow import c_api, errors, kernel, mechanism, numpy_function
from distrun.graphs.tensorflow.done_callback import DoneCallback
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world
from distrun.tensorflow.gradients import entry_of

pytestmark = pytest.mark.gate


@pytest.fixture
def alone(monkeypatch):
    for variable in ("DISTRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"):
        monkeypatch.delenv(variable, raising=False)
    hvd.init()
    assert hvd.size() == 1
    yield
    hvd.shutdown()


@pytest.fixture
def untried(monkeypatch):
    """As if nothing had been chosen yet."""
    monkeypatch.setattr(mechanism, "_mechanism", kernel)
    monkeypatch.setattr(mechanism, "_is_tried", False)
    monkeypatch.delenv(TENSORFLOW_OP, raising=False)


@pytest.fixture
def warnings(caplog):
    log = logging.getLogger("distrun")
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)


@pytest.mark.full  # seconds for an import
def test_importing_the_face_loads_no_mpi_and_settles_no_devices():
    code = (
        "import sys, distrun.tensorflow, tensorflow as tf; "
        "tf.config.threading.set_inter_op_parallelism_threads(1); tf.config.set_visible_devices([], 'GPU'); "
        "sys.exit('mpi4py' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_before_init_the_face_says_so():
    assert not world.is_initialized()
    with pytest.raises(NotInitializedError, match="call distrun"):
        hvd.allreduce(tf.ones(1))
    with pytest.raises(NotInitializedError):
        hvd.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(NotInitializedError):
        hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())


def test_everything_that_is_offered_is_there():
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    with pytest.raises(AttributeError, match="allreduce_async"):
        hvd.allreduce_async  # noqa: B018


def test_collectives_of_one_rank_give_what_they_are_given(alone):
    tensor = tf.reshape(tf.range(6.0), (2, 3))
    for function in (
        hvd.allreduce,
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda tensor: hvd.broadcast(tensor, 0),
        lambda tensor: hvd.grouped_allreduce([tensor])[0],
    ):
        assert function(tensor).numpy().tolist() == tensor.numpy().tolist()
        assert tf.function(function)(tensor).numpy().tolist() == tensor.numpy().tolist()
    variable = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        loss = variable**2
    assert float(hvd.DistributedGradientTape(tape).gradient(loss, variable)) == 4.0
    hvd.broadcast_variables([variable], 0)


def test_the_kernel_is_what_this_tensorflow_takes(untried, warnings):
    assert mechanism.mechanism() is kernel
    assert not warnings.records


def test_a_tensorflow_that_lacks_a_function_is_served_by_numpy_function_with_one_warning(
    untried, warnings, monkeypatch
):
    monkeypatch.setitem(c_api._SIGNATURES, "TF_OfTomorrow", (None, ()))
    monkeypatch.setattr(kernel, "_registration", None)
    assert mechanism._registered() is numpy_function
    assert [record.levelname for record in warnings.records] == ["WARNING"]
    assert "TF_OfTomorrow" in warnings.text
    assert f"{TENSORFLOW_OP}=numpy_function silences this" in warnings.text


def test_a_kernel_that_gives_other_results_is_not_used(untried, warnings, monkeypatch):
    monkeypatch.setattr(kernel, "reduce", lambda tensors, collective: [2 * tensor for tensor in tensors])
    assert mechanism.mechanism() is numpy_function
    assert mechanism.mechanism() is numpy_function
    assert len(warnings.records) == 1
    assert "a trial run gave" in warnings.text


def test_a_kernel_that_was_asked_for_and_fails_is_an_error(untried, monkeypatch):
    monkeypatch.setenv(TENSORFLOW_OP, "kernel")
    monkeypatch.setitem(c_api._SIGNATURES, "TF_OfTomorrow", (None, ()))
    monkeypatch.setattr(kernel, "_registration", None)
    with pytest.raises(UsageError, match=r"kernel does not work with TensorFlow .*TF_OfTomorrow.*use auto"):
        mechanism._registered()


def test_the_mechanism_is_one_of_three(monkeypatch):
    monkeypatch.setenv(TENSORFLOW_OP, "xla")
    with pytest.raises(UsageError, match="'xla' is not one of auto, kernel, numpy_function"):
        mechanism._registered()


def test_a_node_that_is_not_understood_fails_in_a_sentence(alone, monkeypatch):
    monkeypatch.setattr(Call, "encode", lambda self: "sing")
    unknown = tf.function(lambda tensor: kernel.reduce([tensor], Call("allreduce", "name")))
    with pytest.raises(tf.errors.InternalError, match="JSONDecodeError"):
        unknown(tf.ones(1))


def test_a_done_callback_of_another_layout_is_left_alone():
    room = (ctypes.c_uint64 * 4)(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="not a std::function"):
        DoneCallback(ctypes.addressof(room))
    assert list(room) == [1, 2, 3, 4]


def test_a_session_is_served_by_the_calling_thread_where_callbacks_cannot_be_kept(alone, monkeypatch):
    def refuse(address):
        raise RuntimeError

    monkeypatch.setattr(kernel, "DoneCallback", refuse)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run([hvd.allreduce(tf.ones(2)), hvd.allgather(tf.ones(2))])[1].tolist() == [1.0, 1.0]


def test_errors_are_ours_and_tensorflows_and_survive_pickling():
    for kind, other in (
        (MismatchError, tf.errors.FailedPreconditionError),
        (UsageError, tf.errors.InvalidArgumentError),
    ):
        error = pickle.loads(pickle.dumps(errors.for_tensorflow(kind("the ranks disagree"))))
        assert isinstance(error, kind)
        assert isinstance(error, other)
        assert str(error) == error.message == error.args[0] == "the ranks disagree"
    gone = JobAbortedError("rank 1 is gone")
    assert errors.for_tensorflow(gone) is gone
    codes = [errors.status_code(error) for error in (MismatchError(), UsageError(), gone, KeyError())]
    assert codes == [9, 3, 2, 13]


def test_variables_are_listed_without_the_numbers_of_their_layers():
    assert canonical_name("dense_12/kernel_1:0") == "dense/kernel"
    assert canonical_name("adam/dense_1_kernel_momentum") == "adam/dense_kernel_momentum"
    assert canonical_name("conv2d/kernel") == "conv2d/kernel"
    assert entry_of(tf.Variable([1.0], name="bias_3"), 0) == "bias [1] float32"
    assert entry_of(tf.keras.layers.Dense(2, name="fc").add_weight(shape=(2, 3), name="kernel"), 0).endswith(
        "[2, 3] float32"
    )
    assert entry_of(tf.ones((4, 5)), 7) == "tensor 7 float32"


def test_the_keras_face_has_horovods_other_name_too():
    import distrun.keras
    import distrun.tensorflow.keras as other
    from distrun.keras.values import tensors

    assert other.__all__ == distrun.keras.__all__
    assert {name for name in other.__all__ if getattr(other, name) is not getattr(distrun.keras, name)} == {
        *tensors.__all__
    }
