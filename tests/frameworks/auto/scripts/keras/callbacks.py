"""A functional regression model with the usual callbacks: early stopping, plateau, best checkpoint, a log in CSV."""

import argparse

import keras
import numpy as np
from keras import callbacks, layers
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()
keras.utils.set_random_seed(812)

x, y = load_diabetes(return_X_y=True)
x, y = (x / x.std()).astype("float32"), ((y - y.mean()) / y.std()).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0)
sample_weight = np.where(y_train > 0, 1.5, 1.0)

inputs = keras.Input(shape=(10,), name="features")
x = layers.Dense(32, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
x = layers.Dense(16, activation="relu")(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.RMSprop(2e-3), loss="huber", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])


class Report(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch % 5 == 0:
            print(f"epoch {epoch}: loss {logs['loss']:.4f}, val_rmse {logs['val_rmse']:.4f}")


model.fit(
    x_train,
    y_train,
    sample_weight=sample_weight,
    batch_size=24,
    epochs=args.epochs,
    validation_data=(x_test, y_test),
    verbose=0,
    callbacks=[
        callbacks.EarlyStopping(monitor="val_loss", patience=6, restore_best_weights=True),
        callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2, verbose=1),
        callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        callbacks.CSVLogger("log.csv"),
        Report(),
    ],
)
loss, rmse = keras.saving.load_model("best.keras").evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.4f}, rmse {rmse:.4f}, learning rate {float(model.optimizer.learning_rate):.6f}")
