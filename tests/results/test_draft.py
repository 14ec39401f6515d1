"""A draft skips what only the report and faster serving need, says so, and is completed without training again."""

import pytest

from container.results.finish import NOT_IN_A_DRAFT
from contracts import artifacts
from contracts.hyperparameters import Hyperparameters
from contracts.unused_settings import unused_settings
from testing.jobs import CONFIGURATION, ONE_LAYER, metrics, run_train, write_hyperparameters, write_job


@pytest.mark.slow
def test_a_draft_has_the_model_and_metrics_and_the_run_without_draft_adds_the_rest(tmp_path):
    settings = {
        "encoder_config": ONE_LAYER, "max_epochs": 1, "companion": True, "label_issues": True, "explain": 8,
        "onnx_variants": ["fused"],
    }  # fmt: skip
    paths = write_job(tmp_path, overrides={**settings, "draft": True})
    log = run_train(paths)
    drafted, report = metrics(paths), (paths.output_data / artifacts.REPORT).read_text()
    assert "draft: without companion, label_issues, explain, onnx_variants" in log
    assert "onnx_variants is set and has no effect here: draft is true." in log
    assert "This is a draft" in report
    assert [drafted[name] for name in ("draft", "companion", "explanation", "onnx_variants")] == [True, None, None, {}]
    assert (paths.model / artifacts.MODEL_ONNX).is_file()
    assert not (paths.model / artifacts.onnx_file("fused")).exists()
    assert not (paths.output_data / artifacts.LABEL_ISSUES).exists()
    assert "Most confident errors" not in report

    write_hyperparameters(paths, {**settings, "draft": False})
    assert "resuming from" in run_train(paths)
    completed = metrics(paths)
    assert not completed["draft"]
    assert None not in (completed["companion"], completed["explanation"])
    assert "first step" not in completed["timeline"]  # no step of training is repeated
    assert (paths.model / artifacts.onnx_file("fused")).is_file()


@pytest.mark.parametrize("name", NOT_IN_A_DRAFT)
def test_a_setting_that_a_draft_skips_has_no_effect_and_is_named(name):
    value = {"explain": 8, "onnx_variants": ["int8"]}.get(name, True)
    hp = Hyperparameters(**CONFIGURATION, draft=True, **{name: value})
    assert f"{name} is set and has no effect here: draft is true." in unused_settings(hp)


def test_a_draft_skips_every_setting_that_needs_a_whole_job():
    hp = Hyperparameters(**CONFIGURATION, draft=True)
    needing = {name for name, each in hp.declarations().items() if each.obstacle(hp, ()) == "draft is true"}
    assert needing == set(NOT_IN_A_DRAFT)
