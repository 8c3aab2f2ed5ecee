"""A model of two inputs and two outputs on dictionaries of arrays, and one on unbalanced classes with class weights."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_breast_cancer, load_digits

keras.utils.set_random_seed(3)
digits = load_digits()
pixels = (digits.images / 16).astype("float32")
x = {"top": pixels[:, :4].reshape(-1, 32), "bottom": pixels[:, 4:].reshape(-1, 32)}
y = {"digit": digits.target, "ink": pixels.mean((1, 2))}
train = slice(None, 1350)
test = slice(1350, None)

inputs = {name: keras.Input((32,), name=name) for name in ("top", "bottom")}
hidden = layers.concatenate([layers.Dense(24, activation="relu")(inputs[name]) for name in ("top", "bottom")])
outputs = {
    "digit": layers.Dense(10, activation="softmax", name="digit")(hidden),
    "ink": layers.Dense(1, name="ink")(hidden),
}
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Nadam(2e-3),
    loss={"digit": "sparse_categorical_crossentropy", "ink": "mse"},
    loss_weights={"digit": 1.0, "ink": 2.0},
    metrics={"digit": ["accuracy"]},
)
model.fit(
    {name: value[train] for name, value in x.items()},
    {name: value[train] for name, value in y.items()},
    epochs=8,
    batch_size=32,
    verbose=2,
)
results = model.evaluate(
    {name: value[test] for name, value in x.items()},
    {name: value[test] for name, value in y.items()},
    return_dict=True,
    verbose=0,
)
first = results["loss"]
print(f"two inputs: loss {first:.4f}, accuracy {results['digit_accuracy']:.4f}")

x, y = load_breast_cancer(return_X_y=True)
x = ((x - x.mean(0)) / x.std(0)).astype("float32")
counts = np.bincount(y[:400])
class_weight = {label: len(y[:400]) / (2 * count) for label, count in enumerate(counts)}
model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1, activation="sigmoid")])
model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "precision"])
model.fit(x[:400], y[:400], batch_size=30, epochs=6, class_weight=class_weight, verbose=2)
loss, auc, precision = model.evaluate(x[400:], y[400:], verbose=0)
print(f"class weights: loss {loss:.4f}, AUC {auc:.4f}, precision {precision:.4f}")
print(f"sum of the test losses {first + loss:.4f}")
