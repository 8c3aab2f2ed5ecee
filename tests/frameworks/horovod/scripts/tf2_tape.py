"""Digits of a made-up handwriting, learned by a loop over tf.GradientTape the way Horovod's users write it."""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from digits import images as all_images, labels as all_labels

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

dataset = tf.data.Dataset.from_tensor_slices((all_images, all_labels))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(256, seed=1).batch(16)

tf.random.set_seed(hvd.rank())  # the ranks begin differently: the broadcast must mend that
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.005 * hvd.size())
checkpoint_dir = sys.argv[1]
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905  # as such scripts have it
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(200 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 50 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")
if hvd.rank() == 0:
    checkpoint.save(checkpoint_dir)

average = hvd.allreduce(loss_value, name="loss")
assert average < 0.5, average
weights = tf.concat([tf.reshape(variable, [-1]) for variable in model.trainable_variables], 0)
everywhere = hvd.allgather(weights[None])
assert everywhere.shape[0] == hvd.size() == 2
tf.debugging.assert_equal(everywhere[0], everywhere[1])
assert hvd.broadcast_object(hvd.rank(), root_rank=1) == 1
assert hvd.allreduce(tf.constant([1.0]), op=hvd.Sum) == 2.0
try:
    hvd.allreduce(tf.ones([2 + hvd.rank()]), name="mismatch")
except (tf.errors.OpError, RuntimeError) as error:  # FailedPreconditionError in Horovod
    print("refused:", type(error).__name__)
else:
    raise AssertionError("shapes that differ are an error")
