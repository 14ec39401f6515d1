"""The commands that a run prints."""

import json
import sys

from contracts.steps import PYTORCH_TRAINING, TRACKING
from contracts.tracking import TRACKED
from pipeline.local.cache import StepDirectory
from pipeline.local.digests import ContentDigests
from pipeline.local.progress import Progress
from pipeline.local.run import _not_tracked
from pipeline.local.run_state import Run
from pipeline.plan import make_plan
from testing.pipelines import configuration


def run_under(root):
    root.mkdir()
    config = configuration(aws=None, mlflow={"tracking_uri": "http://127.0.0.1:1"})
    plan = make_plan(config, {})
    return Run(config, plan, root, ContentDigests(root / "digests.json"), "code", Progress(plan.shown))


def test_the_command_that_serves_a_model_quotes_a_root_with_a_space(tmp_path, capsys):
    run_under(tmp_path / "my run").finish(None, seconds=1.0)
    assert f"{sys.executable} -m pipeline serve --root '{tmp_path}/my run'" in capsys.readouterr().out


def test_the_command_that_sends_the_results_later_quotes_a_root_with_a_space(tmp_path, capsys):
    state = run_under(tmp_path / "my run")
    state.directories[PYTORCH_TRAINING.name] = StepDirectory(state.root / "training")
    directory = StepDirectory(state.root / "tracking")
    answer = directory.output(TRACKING, "tracked") / TRACKED
    answer.parent.mkdir(parents=True)
    answer.write_text(json.dumps({"problem": "it is down"}))
    assert _not_tracked(state, directory) == "it is down"
    assert f"python -m container track --root '{tmp_path}/my run/training/ml' --uri" in capsys.readouterr().err
