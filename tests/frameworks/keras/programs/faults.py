"""Ranks that are not at the same place, or not alike: all of them get an error, and can go on."""

from checking import RANK, SIZE, callbacks, data, error_of, feature, fit, keras, loss, mine, network, same_on_all_ranks

import distrun.keras as hvd

LAST = RANK == SIZE - 1


def model_of(build=network):
    model = build(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss())
    return model


def goes_on():
    """Whether all ranks can train again, and their weights are the same afterwards."""
    model = model_of()
    fit(model, callbacks=callbacks())
    return same_on_all_ranks(model.get_weights())


@feature("ranks with different models")
def _():
    def build(seed):
        units = 5 if LAST else 4
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(units, name="narrow"), keras.layers.Dense(3)])

    return error_of(lambda: fit(model_of(build))), goes_on()


@feature("ranks with different models, one of them known")
def _():
    def build(seed):
        extra = [keras.layers.Dense(3)] if LAST else []
        return keras.Sequential([keras.Input((6,)), *extra, keras.layers.Dense(3)])

    fit(model_of(lambda seed: keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])))
    return error_of(lambda: fit(model_of(build), callbacks=callbacks())), goes_on()


@feature("gradients of different variables")
def _():
    first, second = (keras.Variable([1.0, 1.0], name=name) for name in ("first", "second"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([first, second])
    gradient = keras.ops.ones(2) * (RANK + 1.0)
    error = error_of(lambda: optimizer.apply([None, gradient] if LAST else [gradient, None], [first, second]))
    return error, [keras.ops.convert_to_numpy(variable.value).tolist() for variable in (first, second)]


@feature("ranks with different optimizers, broadcast")
def _():
    model = network()
    optimizer = keras.optimizers.Adam() if LAST else keras.optimizers.SGD()
    model.compile(hvd.DistributedOptimizer(optimizer), loss())
    return error_of(lambda: fit(model, callbacks=callbacks())), goes_on()


@feature("callbacks that meet, on one rank")
def _():
    broadcast, average = callbacks()
    errors = [
        error_of(lambda: fit(model_of(), callbacks=[] if LAST else [broadcast])),
        error_of(lambda: fit(model_of(), callbacks=[average] if LAST else [])),
    ]
    return errors, goes_on()


@feature("fewer steps on one rank")
def _():
    return error_of(lambda: fit(model_of(), batches=3 if LAST else 4)), goes_on()


@feature("fewer steps on one rank, metrics averaged")
def _():
    return error_of(lambda: fit(model_of(), batches=3 if LAST else 4, epochs=2, callbacks=callbacks())), goes_on()


@feature("fewer steps on one rank, run_eagerly")
def _():
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss(), run_eagerly=True)
    return error_of(lambda: fit(model, batches=3 if LAST else 4)), goes_on()


class Stopping(keras.callbacks.Callback):
    """Stops training early, as EarlyStopping does."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 0


@feature("one rank stops early")
def _():
    early = [Stopping()] if LAST else []
    return error_of(lambda: fit(model_of(), epochs=3, callbacks=callbacks() + early)), goes_on()


class Failing(keras.callbacks.Callback):
    """Fails in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            raise ValueError("a fault of the user's own")


@feature("an exception in a callback on one rank")
def _():
    failing = [Failing()] if LAST else []
    return error_of(lambda: fit(model_of(), callbacks=callbacks() + failing)), goes_on()


@feature("an exception on one rank before its first step")
def _():
    class Early(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise ValueError("a fault of the user's own")

    before, after = [[Early(), *callbacks()], [*callbacks(), Early()]] if LAST else [callbacks(), callbacks()]
    shape = 5 if LAST else 6
    x, y = data()
    errors = [
        error_of(lambda: fit(model_of(), callbacks=before)),
        error_of(lambda: fit(model_of(), callbacks=after)),
        error_of(lambda: model_of().fit(mine(x)[:, :shape], mine(y), verbose=0, callbacks=callbacks())),
    ]
    return errors, goes_on()


@feature("training of one rank alone")
def _():
    """A plain optimizer is nobody else's concern, whatever happens in other ranks' fits."""
    if LAST:
        model = network()
        model.compile(keras.optimizers.SGD(0.1), loss())
        model.fit(*data(3), verbose=0)
    return "", goes_on()
