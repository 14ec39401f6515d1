"""The metrics that CloudWatch takes from the log of a monitor."""

import json
from typing import Any

import pytest
from botocore.session import Session
from botocore.validate import validate_parameters

from container.monitoring.cloudwatch import metric_lines
from tests.monitoring.conftest import Monitored, records

METRICS: dict[str, Any] = {
    "time": "2026-11-30T10:00:00+00:00",
    "records": 2000,
    "violations": 1,
    "left_out": {"a file that is cut": [3, "a.jsonl"]},
    "metrics": {"auroc": {"value": 0.9, "standard_error": 0.01}, "f1_score": {"value": None, "standard_error": None}},
    "comparisons": [{"subject": "price", "what": "distribution", "distance": 0.2}],
}


def taken(line: str) -> dict[str, float]:
    """Return the metrics of a line, by name, as the embedded metric format says: each is a member of the root."""
    content = json.loads(line)
    (directive,) = content["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Pipeline"]]
    assert isinstance(content["Pipeline"], str)
    return {metric["Name"]: content[metric["Name"]] for metric in directive["Metrics"]}


def test_a_line_has_violations_records_labelled_metrics_and_distances() -> None:
    (line,) = metric_lines(METRICS, pipeline="demo-monitor")
    expected = {"Violations": 1, "Records": 2000, "LeftOut": 3, "auroc": 0.9, "price: distribution": 0.2}
    assert taken(line) == expected
    assert json.loads(line)["_aws"]["Timestamp"] == 1796032800000


def test_names_of_any_column_are_those_that_cloudwatch_takes_and_a_line_has_at_most_100() -> None:
    names = [f"Größe {number} {'x' * 300}" for number in range(150)]
    comparisons = [{"subject": name, "what": "distribution", "distance": 0.5} for name in names]
    found = [taken(line) for line in metric_lines({**METRICS, "comparisons": comparisons}, pipeline="p")]
    assert [len(each) for each in found] == [100, 54]
    shape = Session().get_service_model("cloudwatch").operation_model("PutMetricData").input_shape
    data = [{"MetricName": name, "Value": value} for each in found for name, value in each.items()]
    validate_parameters({"Namespace": "N", "MetricData": data}, shape)
    assert all(each["MetricName"].isascii() for each in data)


def test_a_run_prints_them_where_the_setting_names_the_pipeline(
    monitored: Monitored, capsys: pytest.CaptureFixture[str]
) -> None:
    monitored.give("records", "week.csv", records(500, seed=7).to_csv(index=False))
    monitored.run(CLOUDWATCH_PIPELINE="demo-monitor")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert taken(line)["Records"] == 500
    monitored.run()
    assert "_aws" not in capsys.readouterr().out
