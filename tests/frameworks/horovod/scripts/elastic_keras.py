"""Horovod's documentation of elastic training with Keras, but for the data, the model and the deaths of ranks.

The first argument is the module to import as hvd, the second the batches of a commit. With a third, a step is made
before the training, and whenever it is reset, as in Horovod's example for Keras. DIE names places,
`generation:rank:epoch:batch`, where a rank kills itself; the epochs count over the training, not over a `fit`.
"""

import hashlib
import importlib
import json
import os
import signal
import sys

import keras
import numpy as np

hvd = importlib.import_module(sys.argv[1])
if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras  # what tf.keras is
lr, epochs, batch_size, batches_per_commit = 0.01, 4, 4, int(sys.argv[2])

hvd.init()
generator = np.random.default_rng(hvd.rank())
images = generator.random((12 * batch_size, 6)).astype("float32")
labels = images.sum(axis=1, keepdims=True)

model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(lr * hvd.size())
opt = hvd.DistributedOptimizer(opt)

model.compile(loss="mse", optimizer=opt, metrics=["mae"])


def initialize():
    """Make a step, with a collective, which brings about the optimizer's state."""
    if sys.argv[3:]:
        model.fit(images, labels, batch_size=batch_size, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)


def on_state_reset():
    model.optimizer.learning_rate.assign(lr * hvd.size())
    initialize()  # to join with possible new ranks


initialize()
state = hvd.elastic.KerasState(model, batch=100, epoch=0)
state.register_reset_callbacks([on_state_reset])

callbacks = [
    hvd.elastic.CommitStateCallback(state, batches_per_commit),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
]

if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.keras"))


def tell(**facts):
    generation = int(os.environ["DISTRUN_GENERATION"])
    print(json.dumps({"generation": generation, "rank": hvd.rank(), **facts}), flush=True)


class Witness(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        here = f"{os.environ['DISTRUN_GENERATION']}:{hvd.rank()}:{state.epoch}:{batch}"
        if here in os.environ["DIE"].split():
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch, logs=None):
        logs = {name: float(value) for name, value in logs.items()}  # waits for it, where it is computed ahead
        tell(epoch=state.epoch, batch=batch, noted=state.batch, loss=logs["loss"])


@hvd.elastic.run
def train(state):
    tell(begin=int(model.optimizer.iterations), epoch=state.epoch)
    model.fit(
        *(images, labels),
        batch_size=batch_size,
        steps_per_epoch=24 // hvd.size(),
        callbacks=[*callbacks, Witness()],
        epochs=epochs - state.epoch,
        verbose=1 if hvd.rank() == 0 else 0,
    )


train(state)
bits = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
facts = [bits, int(model.optimizer.iterations), state.epoch, state.batch, float(model.optimizer.learning_rate)]
tell(result=facts[1:], agree=hvd.allgather_object(facts) == [facts] * hvd.size())
