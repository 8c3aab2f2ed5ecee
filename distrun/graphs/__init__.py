"""Collectives inside the graphs that TensorFlow and XLA execute: what the faces of TensorFlow, JAX and Keras are made of."""
