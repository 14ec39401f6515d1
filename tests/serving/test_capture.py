"""Absent columns, and the capture of requests: what the server says, writes and removes."""

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest

from container.decision.decision import Decision
from container.monitoring.captured import RecordFiles
from container.serving.capture import Capture
from container.serving.errors import RequestError
from container.serving.model import ServedModel
from container.serving.predictor import Predictor
from container.serving.requests import read_request
from contracts.serving import JSON, ServingSettings
from testing.jobs import wait_for
from testing.table_jobs import fit, table

RECORD = {"text": "thank you", "x": 1.0, "y": 2.0, "c": "a"}


class Even:
    """A backend that gives both classes the same probability."""

    def probabilities(self, _records, indices):
        return np.full((len(indices), 2), 0.5)


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    return _served(tmp_path)


def _served(folder: Path, *, strict: bool = False) -> ServedModel:
    preprocessor, _ = fit(folder, table(40))
    predictor = Predictor(preprocessor, Even(), decision=Decision(), batch_size=8)
    return ServedModel(predictor, strict_columns=strict)


def ask(served: ServedModel, content: object) -> None:
    served.predict(read_request(json.dumps(content).encode(), JSON, ServingSettings()))


def without(*names: str) -> dict[str, object]:
    return {name: value for name, value in RECORD.items() if name not in names}


def test_a_column_that_no_record_has_is_one_warning_an_hour(
    served: ServedModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    for hours, warnings in ((0.0, 1), (0.5, 1), (1.1, 2)):
        monkeypatch.setattr("container.serving.absent_columns.time.monotonic", lambda hours=hours: began + 3600 * hours)
        ask(served, [without("x"), without("x", "y")])
        assert len(caplog.records) == warnings
    assert "column 'x' is absent from every record of a request (of 3 requests since the start)" in caplog.text
    assert "'y'" not in caplog.text


def test_null_is_a_value_of_a_column(served: ServedModel, caplog: pytest.LogCaptureFixture) -> None:
    ask(served, {**RECORD, "x": None})
    assert not caplog.records


def test_strict_columns_refuse_a_request_without_a_column(tmp_path: Path) -> None:
    strict = _served(tmp_path, strict=True)
    ask(strict, [without("x"), RECORD])
    with pytest.raises(RequestError, match="no record has the column 'x'"):
        ask(strict, [without("x"), without("x", "c")])


def capture(folder: Path, **options: float) -> Capture:
    settings = ServingSettings.model_validate({f"serving_capture_{name}": value for name, value in options.items()})
    return Capture(str(folder), settings)


def add(target: Capture, body: bytes, **headers: str) -> None:
    target.add(io.BytesIO(body), len(body), {"Content-Type": JSON, **headers}, (b"{}", JSON))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


def test_captured_requests_have_the_format_of_the_service(tmp_path: Path) -> None:
    add(capture(tmp_path), json.dumps(RECORD).encode(), **{"X-Amzn-Sagemaker-Inference-Id": "r1"})
    wait_for(lambda: files(tmp_path) and files(tmp_path)[0].read_bytes())
    line = json.loads(files(tmp_path)[0].read_text())
    assert line["eventVersion"] == "0"
    assert line["eventMetadata"]["inferenceId"] == "r1"
    assert line["captureData"]["endpointOutput"] == {
        "observedContentType": JSON, "mode": "OUTPUT", "data": "e30=", "encoding": "BASE64",
    }  # fmt: skip
    (found, _), *_ = RecordFiles(tmp_path, ["x"], id_name="id").tables(tmp_path)
    assert found.to_pylist() == [{**RECORD, "id": "r1"}]


def test_only_the_given_share_is_captured(tmp_path: Path) -> None:
    target = capture(tmp_path, percentage=20)
    for _ in range(200):
        add(target, b"{}")
    time.sleep(0.2)
    count = sum(path.read_text().count("\n") for path in files(tmp_path))
    assert 15 <= count + target.lost <= 70


def test_the_oldest_captures_are_removed_and_no_other_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.jsonl"
    own.write_text("x" * 100)
    target = capture(tmp_path, max_bytes=2 << 20)
    for _ in range(60):
        add(target, b"x" * 100_000)
        time.sleep(0.005)
    wait_for(target._waiting.empty)
    time.sleep(0.1)
    assert sum(path.stat().st_size for path in files(tmp_path)) < 2 << 20
    assert own.exists()


def test_a_disk_that_cannot_be_written_delays_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    target = capture(tmp_path / "file")
    began = time.monotonic()
    for _ in range(1000):
        add(target, b"{}")
    assert time.monotonic() - began < 2
    wait_for(lambda: target.lost >= 8)
    assert "requests were not captured" in caplog.text


def test_a_captured_file_that_is_moved_away_is_followed_by_another_one(tmp_path: Path) -> None:
    target = capture(tmp_path / "captures")
    add(target, b"{}")
    wait_for(lambda: files(tmp_path))
    (tmp_path / "captures").rename(tmp_path / "taken")
    add(target, b"{}")
    wait_for(lambda: files(tmp_path / "captures"))
    assert [path.read_text().count("\n") for path in files(tmp_path)] == [1, 1]
