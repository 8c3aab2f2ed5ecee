"""Programs on the CPU that play programs on the simulated GPU: XLA calls the handler for GPUs."""

import math

import jax
import numpy as np
import simulator

from distrun.graphs.jax import cuda_handler, ffi, handler, mechanism
from distrun.runtime.world import world

calls = []
"""The names of what each call of the handler has called on the simulated GPU, in their order."""


def play():
    """Let JAX count as computing on this rank's GPU. Return the stream that XLA gives to the handler.

    A call finds its arguments in the GPU's memory, written by copies that are still queued on the stream, and XLA on
    the CPU gets the results by copies that are queued behind the call, which is when the host waits.
    """
    driver = world.engine().gpu().driver
    stream, run = driver.new_stream(), cuda_handler.Queued.run

    def run_on_gpu(self, pointer, arguments, results):
        memory, copies_back = {}, []
        nbytes = [
            [math.prod(shape) * storage.itemsize for shape, storage in zip(shapes, self.storage, strict=True)]
            for shapes in self.shapes
        ]
        with driver.use:
            for address, count in zip(arguments, nbytes[0], strict=True):
                memory[address] = driver.allocate(count, np.dtype(np.uint8), pointer)
                driver.copy(memory[address].pointer, address, count, pointer)
            for address, count in zip(results, nbytes[1], strict=True):
                memory.setdefault(address, driver.allocate(count, np.dtype(np.uint8), pointer))
                copies_back.append((address, memory[address].pointer, count))
        before = len(simulator.log())
        run(self, pointer, *([memory[address].pointer for address in given] for given in (arguments, results)))
        calls.append([call.name for call in simulator.log()[before:]])
        with driver.use:
            for copy in copies_back:
                driver.copy(*copy, pointer)
            driver.synchronize(driver.record(pointer))

    cuda_handler.Queued.run = run_on_gpu
    cuda_handler.register = lambda: jax.ffi.register_ffi_target(
        handler.TARGET, jax.ffi.pycapsule(cuda_handler.HANDLER), platform="cpu"
    )
    handler.register = lambda: None
    ffi.Frame.stream = lambda frame: stream.ptr
    mechanism._computes_on_gpu = lambda: True
    mechanism._own_gpu = lambda: jax.local_devices()[0]
    return stream
