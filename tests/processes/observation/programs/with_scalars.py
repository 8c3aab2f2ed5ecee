"""A training that writes scalars of its own: `torch FOLDER`, `keras FOLDER` or `mlflow FOLDER`; or `none FOLDER`."""

import contextlib
import sys
import time

import numpy

import distrun

KIND, FOLDER = sys.argv[1:]
SECONDS = 3.0


def train(write=lambda step: None):
    """Step for some seconds."""
    distrun.barrier()  # imports take their time
    end, step = time.monotonic() + SECONDS, 0
    while distrun.allreduce(float(time.monotonic() < end), name="goes on", op=distrun.Min) > 0:
        distrun.allreduce(numpy.ones(10), name="gradients")
        time.sleep(0.005)
        step += 1
        write(step)


def keras():
    import keras

    import distrun.keras as dk

    class Until(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if not epoch:  # compiling takes its time
                self.end = time.monotonic() + SECONDS
            self.model.stop_training = distrun.allreduce(float(time.monotonic() < self.end), op=distrun.Min) == 0

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(dk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    callbacks = [dk.callbacks.BroadcastGlobalVariablesCallback(0), Until()]
    if distrun.rank() == 0:
        callbacks.append(keras.callbacks.TensorBoard(FOLDER))
    model.fit(numpy.ones((64, 4)), numpy.ones((64, 1)), batch_size=8, epochs=100_000, callbacks=callbacks, verbose=0)


def main():
    distrun.init()
    if KIND == "keras":
        keras()
    elif distrun.rank() or KIND == "none":
        train()
    elif KIND == "torch":
        sys.modules["tensorflow"] = None  # TensorBoard does without, and need not wait until it is imported
        from torch.utils.tensorboard import SummaryWriter

        with contextlib.closing(SummaryWriter(FOLDER)) as writer:
            train(lambda step: writer.add_scalar("loss", 1 / step, step))
    else:
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{FOLDER}/runs.db")
        with mlflow.start_run():
            train()


main()
