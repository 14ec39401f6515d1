"""The output of a job has the curves of the networks of its model, and of no others."""

from container.launch.run_queue import show_curves
from contracts.paths import JobPaths


def test_curves_of_earlier_runs_are_removed_and_folders_of_the_user_stay(tmp_path):
    paths, run = JobPaths(tmp_path), tmp_path / "checkpoints" / "tuning" / "trial-0003"
    for folder in (JobPaths(run).tensorboard, paths.tensorboard / "seed-43", paths.tensorboard / "my-runs"):
        folder.mkdir(parents=True)
        (folder / "events").touch()
    (JobPaths(run).tensorboard / "events.sagemaker-uploaded").touch()
    show_curves(paths, [run])
    found = {str(path.relative_to(paths.tensorboard)) for path in paths.tensorboard.rglob("*") if path.is_file()}
    assert found == {"trial-0003/events", "my-runs/events"}
