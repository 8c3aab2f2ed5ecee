"""A model with a training step of its own, as Keras's guides write it for each backend."""

import keras


class OwnStep(keras.Model):
    """Minimizes `own_loss(y, y_pred)`."""

    own_loss = None


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}

elif keras.backend.backend() == "jax":
    import jax

    def train_step(self, state, data):
        trainable, others, of_optimizer, of_metrics = state
        x, y = data

        def loss_of(trainable, others):
            output, others = self.stateless_call(trainable, others, x, training=True)
            return self.own_loss(y, output), others

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, others)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, others, of_optimizer, of_metrics)

else:
    import torch

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = self.own_loss(y, self(x, training=True))
        loss.backward()
        with torch.no_grad():
            self.optimizer.apply([each.value.grad for each in self.trainable_weights], self.trainable_weights)
        return {"loss": loss}


OwnStep.train_step = train_step
