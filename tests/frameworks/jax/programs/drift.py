"""With a JAX whose internals have changed, collectives go through `io_callback`, and a warning says so, once."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
from checking import check, close, run_checks

import distrun.jax as distrun


class Keeper(logging.Handler):
    """Keeps what has been logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


log = Keeper()
logging.getLogger("distrun").addHandler(log)
jax.ffi.ffi_lowering = None  # as if JAX had it no more

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()
OWN = jnp.arange(3.0) + RANK


@check
def values_and_gradients_are_right_all_the_same():
    mean = np.arange(3.0) + (SIZE - 1) / 2
    close(jax.jit(distrun.allreduce)(OWN), mean)
    close(jax.jit(jax.grad(lambda x: (distrun.allreduce(x) ** 2).sum()))(OWN), 2 * mean)
    mixed = {"x": OWN, "count": jnp.arange(2), "wide": OWN[:0]}
    close(jax.jit(jax.grad(lambda x: distrun.allreduce({**mixed, "x": x})["x"].sum()))(OWN), np.ones(3))
    close(jax.jit(lambda x: jax.lax.scan(lambda y, _: (distrun.allreduce(y), y), x, None, 3))(OWN)[0], mean)
    assert "xla_ffi_python_cpu_callback" in jax.jit(distrun.allreduce).lower(OWN).as_text()


@check
def one_warning_says_that_it_is_slower_and_how_to_turn_it_off():
    (line,) = log.lines
    assert "slower way" in line
    assert "DISTRUN_JAX_CALL=io_callback" in line


run_checks()
