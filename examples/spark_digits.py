"""Handwritten digits on a Spark cluster: a DataFrame in, a fitted model, its predictions as a DataFrame.

    python spark_digits.py                                    on this machine, in two tasks
    spark-submit --master spark://... spark_digits.py DIR     on a cluster; DIR is a folder that its hosts share

It does the work of an estimator, in lines that can be read and changed. Needs `pip install '.[spark]' torch pandas
scikit-learn` on the executors too.
"""

import sys

import numpy as np
import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import distrun.spark
import distrun.torch as dt


def train(data):
    """Train on this rank's rows, and return the model, which is the same on all ranks."""
    dt.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    dt.broadcast_parameters(model.state_dict(), root_rank=0)
    batches = data.shard(32, shuffle=True)
    for epoch in range(5):
        for batch in batches:
            optimizer.zero_grad()
            scores = model(torch.tensor(batch["pixels"]) / 16)
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor(batch["label"]))
            loss.backward()
            optimizer.step()
        if dt.rank() == 0:
            print(f"epoch {epoch + 1}: last loss {loss.item():.3f}", flush=True)
    return model


def predict(table, model):
    """Return the DataFrame with a column of predictions."""

    def of_parts(parts):
        for part in parts:
            scores = model(torch.tensor(np.stack(part["pixels"])) / 16)
            yield part.assign(prediction=scores.argmax(1).numpy())

    return table.mapInPandas(of_parts, "pixels array<float>, label long, prediction long")


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "digits.parquet"
    builder = SparkSession.builder if len(sys.argv) > 1 else SparkSession.builder.master("local[2]")
    spark = builder.getOrCreate()
    images, labels = load_digits(return_X_y=True)
    rows = list(zip(images.tolist(), labels.tolist(), strict=True))
    table = spark.createDataFrame(rows, "pixels array<float>, label long")
    data = distrun.spark.dataset(table, folder, num_proc=2)
    model = distrun.spark.run(train, (data,), num_proc=2)[0]
    print(f"right: {predict(table, model).where('label = prediction').count() / len(labels):.1%}")
