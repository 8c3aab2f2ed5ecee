"""Forecast a series with an LSTM on windows from timeseries_dataset_from_array, with checkpoints and early stopping."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
t = np.arange(2400)
features = np.stack([np.sin(t / 6), np.cos(t / 19), 0.2 * rng.standard_normal(len(t))], axis=1).astype("float32")
target = features[:, 0] * features[:, 1] + features[:, 2]
split, past, future, step, batch_size = 1900, 24, 3, 2, 64

dataset_train = keras.preprocessing.timeseries_dataset_from_array(
    features[: split - future],
    target[past + future : split],
    sequence_length=past // step,
    sampling_rate=step,
    batch_size=batch_size,
)
dataset_val = keras.preprocessing.timeseries_dataset_from_array(
    features[split:-future],
    target[split + past + future :],
    sequence_length=past // step,
    sampling_rate=step,
    batch_size=batch_size,
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape)
print("Target shape:", targets.numpy().shape)

inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
lstm_out = keras.layers.LSTM(16)(inputs)
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(1)(lstm_out))
model.compile(optimizer=keras.optimizers.Adam(learning_rate=5e-3), loss="mse")

path_checkpoint = "model_checkpoint.weights.h5"
es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath=path_checkpoint, verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(
    dataset_train, epochs=10, validation_data=dataset_val, callbacks=[es_callback, modelckpt_callback], verbose=2
)
model.load_weights(path_checkpoint)
print(f"best of the epochs: {min(history.history['val_loss']):.5f}")
print(f"validation loss {model.evaluate(dataset_val, verbose=0):.5f}")
