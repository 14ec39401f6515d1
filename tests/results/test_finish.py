"""A stop that is requested after the last step ends the job before its results are written."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from container.errors import StopAgreed
from container.job.timeline import Timeline
from container.results import finish as module
from container.results.companion import Combined
from container.results.finish import finish
from container.training.stop import StopFlag
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.jobs import CONFIGURATION


@pytest.mark.parametrize("after", ["the last step", "the companion"])
def test_ctrl_c_stops_before_the_next_phase_and_nothing_is_exported(tmp_path, monkeypatch, after):
    stop, fitted = StopFlag(), []

    def add_companion(*_: Any) -> Combined:
        fitted.append(True)
        stop.requested = True
        return Combined(None, {})

    def export(*_: Any, **__: Any) -> None:
        raise AssertionError("exported after the stop")

    monkeypatch.setattr(module, "add_companion", add_companion)
    monkeypatch.setattr(module, "replace", lambda trained, **_: trained)
    monkeypatch.setattr(module, "_fit_decision", export)
    stop.requested = after == "the last step"
    hp = Hyperparameters(**CONFIGURATION, companion=True)
    job = SimpleNamespace(hp=hp, paths=JobPaths(tmp_path), timeline=Timeline())
    trained, data = SimpleNamespace(logits={}, out_of_fold=None), SimpleNamespace(splits={"val": None})
    with pytest.raises(StopAgreed):
        finish(cast(Any, job), cast(Any, None), cast(Any, trained), data=cast(Any, data), stop=stop)
    assert fitted == ([True] if after == "the companion" else [])
    assert not list(tmp_path.rglob("*"))
