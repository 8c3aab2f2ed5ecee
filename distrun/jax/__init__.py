"""distrun for jax."""
