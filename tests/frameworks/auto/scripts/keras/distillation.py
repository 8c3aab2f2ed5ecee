"""A small network learns from a large one by a compute_loss of its own, in the shape of Keras's example."""

import keras
from keras import ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1), ops.softmax(y_pred / self.temperature, axis=1)
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(width):
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(10)])


digits = load_digits()
x, y = digits.data.astype("float32") / 16, digits.target
teacher, student = network(128), network(16)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile(keras.optimizers.Adam(), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
teacher.fit(x[:1400], y[:1400], epochs=3, verbose=2)
teacher.evaluate(x[1400:], y[1400:], verbose=2)
distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=loss,
    distillation_loss_fn=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=10,
)
distiller.fit(x[:1400], y[:1400], epochs=4, verbose=2)
student.compile(loss=loss)
print(f"test loss {student.evaluate(x[1400:], y[1400:], verbose=0):.4f}")
