"""GPUs: operations on buffers in their memory, queued on a stream and carried by NCCL. Only then is cupy imported."""
