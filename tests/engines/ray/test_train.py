"""distrun inside Ray Train and Ray Tune: data, checkpoints, reports, trials."""

from __future__ import annotations

import os
from pathlib import Path


def test_a_trainer_has_ray_data_reports_and_checkpoints_with_distrun_between_its_workers(cluster, tmp_path):
    import ray.data
    import ray.train

    from distrun.ray import Config, Trainer

    def train(config):
        import json
        import tempfile

        import numpy as np

        import distrun

        distrun.init()
        context = ray.train.get_context()
        assert (distrun.rank(), distrun.size()) == (context.get_world_rank(), context.get_world_size())
        assert os.environ["MARK"] == "yes"
        rows = [row["id"] for row in ray.train.get_dataset_shard("train").iter_rows()]
        total = distrun.allreduce(np.array([float(sum(rows))]), op=distrun.Sum)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"total": float(total[0]), "rows": len(rows)}))
            checkpoint = ray.train.Checkpoint.from_directory(folder) if distrun.rank() == 0 else None
            ray.train.report({"total": float(total[0]), "rate": config["rate"]}, checkpoint=checkpoint)

    trainer = Trainer(
        train,
        train_loop_config={"rate": 0.5},
        backend_config=Config(env={"MARK": "yes"}),
        scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        datasets={"train": ray.data.range(100)},
        run_config=ray.train.RunConfig(storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    assert result.metrics == {"total": 4950.0, "rate": 0.5}
    with result.checkpoint.as_directory() as folder:
        assert "4950.0" in Path(folder, "state.json").read_text()


def test_trials_of_tune_run_executors_in_the_room_that_tune_has_given_them(cluster, tmp_path):
    from ray import tune

    def trial(config):
        import numpy as np

        from distrun.ray import Executor

        def loss():
            import distrun

            distrun.init()
            return float(distrun.allreduce(np.array([(config["x"] - 3.0) ** 2 + distrun.rank()]))[0])

        with Executor(num_workers=2) as executor:
            return {"loss": executor.run(loss)[0]}

    room = tune.PlacementGroupFactory([{"CPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}])
    tuner = tune.Tuner(
        tune.with_resources(trial, room),
        param_space={"x": tune.grid_search([1.0, 3.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    best = tuner.fit().get_best_result()
    assert (best.config["x"], best.metrics["loss"]) == (3.0, 0.5)
