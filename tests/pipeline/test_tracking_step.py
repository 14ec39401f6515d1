"""A pipeline's section mlflow: hyperparameters of the job, or the step Tracking, which a server cannot fail."""

import json

import pytest
from pydantic import ValidationError

from contracts.errors import ContractError
from contracts.fingerprint import ContentDigests
from contracts.steps import PYTORCH_TRAINING, TRACKED, TRACKING
from pipeline.aws.definition import definition
from pipeline.aws.resolve import aws_plan
from pipeline.local.cache import StepDirectory
from pipeline.local.run import Run, _not_tracked, run_or_reuse
from pipeline.plan import make_plan
from testing.mlflow_server import MlflowServer
from testing.pipelines import AWS, EVERYTHING, MLFLOW, all_steps, configuration, everything, loopback_only, tuned

CONNECTED = {**AWS, "network_isolation": False}
SENT_BY_JOB = {name: value for name, value in MLFLOW.items() if name != "image"}
SETTINGS = configuration().settings


@pytest.fixture(scope="module")
def step():
    with loopback_only():
        steps = all_steps(json.loads(definition(everything())))
    assert not [name for name in steps["PyTorchTraining"]["Arguments"]["HyperParameters"] if name.startswith("mlflow")]
    return steps["Tracking"]


def test_a_job_without_a_network_is_followed_by_a_step_with_one_in_its_own_image(step):
    assert step["Arguments"]["AppSpecification"]["ImageUri"] == MLFLOW["image"]
    network = step["Arguments"]["NetworkConfig"]
    assert network["EnableNetworkIsolation"] is False
    assert network["VpcConfig"]["Subnets"] == EVERYTHING["subnets"]


def test_the_step_reads_both_archives_of_the_job(step):
    model, output = (each["S3Input"]["S3Uri"] for each in step["Arguments"]["ProcessingInputs"])
    assert model == {"Get": "Steps.PyTorchTraining.ModelArtifacts.S3ModelArtifacts"}
    assert output["Std:Join"]["Values"][-1] == "output.tar.gz"


def test_the_step_is_not_cached_because_it_completes_without_the_server(step):
    assert "CacheConfig" not in step


def test_a_run_without_a_name_has_that_of_the_training_job(step):
    variables = step["Arguments"]["Environment"]
    assert variables["MLFLOW_RUN_NAME"] == {"Get": "Steps.PyTorchTraining.TrainingJobName"}
    assert json.loads(variables["MLFLOW_TAGS"]) == MLFLOW["tags"]


def test_after_a_search_of_the_tuner_the_run_has_the_name_of_the_best_job():
    config = tuned().model_copy(update={"mlflow": everything().mlflow})
    with loopback_only():
        steps = all_steps(json.loads(definition(config)))
    name = steps["Tracking"]["Arguments"]["Environment"]["MLFLOW_RUN_NAME"]
    assert name == {"Get": "Steps.PyTorchTraining.TrainingJobSummaries[0].TrainingJobName"}


def test_hyperparameters_of_other_sections_are_no_parameters():
    config = configuration(aws=CONNECTED, mlflow=SENT_BY_JOB)
    assert not [name for name in aws_plan(config).specs if name.startswith("Hp_mlflow")]


def test_a_job_with_a_network_sends_its_results_itself():
    plan = make_plan(configuration(aws=CONNECTED, mlflow=SENT_BY_JOB), {})
    assert TRACKING not in [each.contract for each in plan.steps]
    sent = {name: value for name, value in plan.hyperparameters.items() if name.startswith("mlflow_")}
    assert sent == {
        "mlflow_tracking_uri": MLFLOW["tracking_uri"],
        "mlflow_experiment": "claims",
        "mlflow_tags": '{"team": "risk"}',
    }


def test_a_step_can_send_the_results_of_a_job_with_a_network():
    plan = make_plan(configuration(aws=CONNECTED, mlflow={**MLFLOW, "sent_by": "step"}), {})
    assert TRACKING in plan.before_condition
    assert "mlflow_tracking_uri" not in plan.hyperparameters


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"mlflow": {**SENT_BY_JOB, "sent_by": "job"}}, "mlflow_tracking_uri: .* has no network"),
        ({"mlflow": MLFLOW, "aws": CONNECTED}, "mlflow.image: .* because aws.network_isolation is false"),
        ({"mlflow": {**MLFLOW, "sent_by": "job"}, "aws": CONNECTED}, "mlflow.image: .* because mlflow.sent_by is job"),
        (
            {"hyperparameters": {**configuration().hyperparameters, "mlflow_tracking_uri": "http://127.0.0.1:1"}},
            "mlflow_tracking_uri: .* has no network",
        ),
        (
            {"mlflow": MLFLOW, "hyperparameters": {**configuration().hyperparameters, "mlflow_run_name": "a"}},
            r"hyperparameters\.mlflow_run_name: repeats mlflow\.run_name",
        ),
        (
            {"mlflow": MLFLOW, "settings": {**SETTINGS, "Tracking": {"mlflow_experiment": "other"}}},
            r"settings\.Tracking\.mlflow_experiment: repeats mlflow\.experiment",
        ),
        (
            {"settings": {**SETTINGS, "Tracking": {"mlflow_experiment": "a"}}},
            "settings.Tracking: is for the step Tracking, which",
        ),
        (
            {"mlflow": SENT_BY_JOB, "aws": {**CONNECTED, "steps": {"Tracking": {"volume_gb": 40}}}},
            "aws.steps.Tracking: is for the step Tracking, which is off\nSet mlflow.sent_by to step, or remove it",
        ),
    ],
)
def test_a_contradiction_about_the_tracker_is_refused(changes, cause):
    with pytest.raises(ContractError, match=cause):
        aws_plan(configuration(**changes))


@pytest.mark.parametrize("uri", ["mlflow.example.com", "https://anna:secret@mlflow.example.com"])
def test_an_address_that_is_no_server_or_has_a_password_is_refused(uri):
    with pytest.raises(ValidationError, match="tracking_uri"):
        configuration(mlflow={"tracking_uri": uri})


def test_the_command_that_sends_the_results_later_quotes_a_root_with_a_space(tmp_path, capsys):
    config, root = configuration(aws=None, mlflow={"tracking_uri": "http://127.0.0.1:1"}), tmp_path / "my run"
    state = Run(config, make_plan(config, {}), root, ContentDigests(tmp_path / "digests.json"), "code")
    state.directories[PYTORCH_TRAINING.name] = StepDirectory(root / "training")
    answer = StepDirectory(root / "tracking").output(TRACKING, "tracked") / TRACKED
    answer.parent.mkdir(parents=True)
    answer.write_text(json.dumps({"problem": "it is down"}))
    assert _not_tracked(state, StepDirectory(root / "tracking")) == "it is down"
    assert f"python -m container track --root '{root}/training/ml' --uri" in capsys.readouterr().err


@pytest.fixture
def trained(trained_job, tmp_path):
    """Return a function: the state of a run after its training, with a tracker."""

    def state(uri):
        config = configuration(mlflow={"tracking_uri": uri, "experiment": "from a pipeline"}, aws=None)
        plan = make_plan(config, {})
        run = Run(config, plan, tmp_path, ContentDigests(tmp_path / "digests.json"), "code")
        (tmp_path / "training").mkdir(exist_ok=True)
        if not (tmp_path / "training" / "ml").exists():
            (tmp_path / "training" / "ml").symlink_to(trained_job.root)
        run.directories[PYTORCH_TRAINING.name] = StepDirectory(tmp_path / "training")
        return run

    return state


@pytest.mark.long
def test_a_local_run_goes_on_when_the_tracker_is_down_and_sends_the_results_the_next_time(trained, tmp_path, capfd):
    server = MlflowServer(tmp_path)
    state = trained(server.uri)
    run_or_reuse(state, TRACKING)
    assert TRACKING.name not in state.records  # not cached
    warning = capfd.readouterr().err
    assert "Tracking: the results were not sent (exit code 1). The run continues." in warning
    assert f"python -m container track --root {tmp_path}/training/ml --uri {server.uri}" in warning
    server.start()
    try:
        run_or_reuse(trained(server.uri), TRACKING)
        assert " done " in capfd.readouterr().err.splitlines()[-1]
    finally:
        server.kill()
    state = trained(server.uri)
    run_or_reuse(state, TRACKING)  # from the cache: the server is not asked
    assert TRACKING.name in state.records
    assert " cached " in capfd.readouterr().err
