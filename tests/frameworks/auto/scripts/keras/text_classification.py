"""Classify texts, given as strings, with TextVectorization and a small convolutional model."""

import re

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn import datasets

keras.utils.set_random_seed(0)
loaders = [datasets.load_iris, datasets.load_breast_cancer, datasets.load_diabetes, datasets.load_wine]
texts, labels = [], []
for label, load in enumerate(loaders):
    words = re.findall(r"[A-Za-z]+", load().DESCR)
    for start in range(0, len(words) - 12, 2):
        texts.append(" ".join(words[start : start + 12]))
        labels.append(label)
order = np.random.default_rng(0).permutation(len(texts))
texts, labels = np.array(texts)[order], np.array(labels)[order]
split = int(0.8 * len(texts))

raw_train_ds = tf.data.Dataset.from_tensor_slices((texts[:split], labels[:split])).shuffle(1000, seed=0).batch(32)
raw_val_ds = tf.data.Dataset.from_tensor_slices((texts[split:], labels[split:])).batch(32)

vectorize_layer = layers.TextVectorization(
    standardize="lower_and_strip_punctuation", max_tokens=600, output_mode="int", output_sequence_length=12
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(tf.data.AUTOTUNE)
val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(tf.data.AUTOTUNE)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(600, 24)(inputs)
x = layers.Conv1D(32, 3, padding="valid", activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
predictions = layers.Dense(4, activation="softmax", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.Adam(2e-3), metrics=["accuracy"])
model.fit(train_ds, validation_data=val_ds, epochs=6, verbose=2)
loss, accuracy = model.evaluate(val_ds, verbose=0)
print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")
