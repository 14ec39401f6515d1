"""The report of a finished job has the reasons that its Predictor gives."""

import pytest

from container.results import shown_records as module


@pytest.mark.slow
def test_the_report_has_ten_records_with_reasons(calibrated_job):
    page = (calibrated_job.output_data / "report.html").read_text()
    assert page.count("<article>") == 10
    assert "confident and right" in page
    assert "near the threshold" in page


def test_an_error_leaves_the_reasons_out(caplog):
    assert module.explain_records(None, None, {}, decision=None, stopped=lambda: False) is None
    assert "reasons: none, because of KeyError" in caplog.text


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
