"""Lines of a log from which CloudWatch Logs takes metrics (embedded metric format), without a request or a permission.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

NAMESPACE = "TextTableTrainer/Monitoring"
_MOST_METRICS = 100  # of a line
_LONGEST = 255  # characters of a metric's name


def metric_lines(content: Mapping[str, Any], *, pipeline: str) -> list[str]:
    """Return the lines of a run: violations, records, what was left out, metrics of labels, and each distance.

    Args:
        content: what metrics.json of the monitor has.
        pipeline: value of the dimension Pipeline.
    """
    values: dict[str, float] = {
        "Violations": content["violations"],
        "Records": content["records"],
        "LeftOut": sum(count for count, _ in content["left_out"].values()),
        **{name: found["value"] for name, found in content["metrics"].items() if found["value"] is not None},
        **{f"{each['subject']}: {each['what']}": each["distance"] for each in content["comparisons"]},
    }
    named = {name.encode("ascii", "backslashreplace").decode()[:_LONGEST]: float(values[name]) for name in values}
    milliseconds = int(datetime.fromisoformat(content["time"]).timestamp() * 1000)
    lines = []
    for first in range(0, len(named), _MOST_METRICS):
        part = dict(list(named.items())[first : first + _MOST_METRICS])
        metrics = [{"Name": name} for name in part]
        directive = {"Namespace": NAMESPACE, "Dimensions": [["Pipeline"]], "Metrics": metrics}
        head = {"Timestamp": milliseconds, "CloudWatchMetrics": [directive]}
        lines.append(json.dumps({"_aws": head, "Pipeline": pipeline, **part}))
    return lines
