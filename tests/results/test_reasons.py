"""The report of a finished job has the reasons that its Predictor gives."""

import numpy as np
import pytest

from container.results import shown_records as module


@pytest.mark.slow
def test_the_report_has_ten_records_with_reasons(calibrated_job):
    page = (calibrated_job.output_data / "report.html").read_text()
    assert page.count("<article>") == 10
    assert "confident and right" in page
    assert "near the threshold" in page


def test_an_error_leaves_the_reasons_out(monkeypatch, caplog):
    monkeypatch.setattr(module, "_explained", lambda *_, **__: 1 / 0)

    class Split:
        labels = np.array([1])

    assert module.explain_records(None, None, {"test": Split}, decision=None, stopped=lambda: False) == ()
    assert "without reasons, because of ZeroDivisionError" in caplog.text


class Slow:
    """A predictor that notes the levels it is asked for."""

    def __init__(self):
        self.levels = []

    def explain(self, _, level="column"):
        self.levels.append(level)
        return [{"level": level}]


@pytest.mark.parametrize(("until", "level"), [(float("inf"), "text"), (0.0, "column")])
def test_texts_are_divided_only_if_there_is_time(until, level):
    assert module._reasons(Slow(), None, until=until) == {"level": level}
