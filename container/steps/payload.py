"""Payload: load the package in a fresh process, send it requests, and write the sample requests."""

import base64
import csv
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from container.preprocessing.fitted import FittedPreprocessing
from container.serving import inference
from container.serving.answers import PROBABILITIES
from container.steps import ask_package
from container.steps.archives import extract_archive, write_archive
from container.steps.check_records import Expected, Record, expected_records
from container.steps.program import StepRun
from contracts import artifacts
from contracts.errors import ContractError
from contracts.fingerprint import digest_of_file
from contracts.serving import (
    CODE_FOLDER,
    CSV,
    ENTRY_POINT,
    JSON,
    JSON_LINES,
    MEDIA_TYPES,
    PARQUET,
    RecordSettings,
    ServingSettings,
)
from contracts.spelling import did_you_mean
from contracts.steps import ARCHIVED_MODEL, PAYLOAD_ARCHIVE, PAYLOAD_CHECK, PayloadSettings
from contracts.table_formats import MEDIA_TYPES as SUFFIX_MEDIA_TYPES

logger = logging.getLogger(__name__)

SUFFIXES = {media_type: suffix for suffix, media_type in SUFFIX_MEDIA_TYPES.items()}


def request_body(
    records: Sequence[Record], media_type: str, *, header: bool = True, csv_columns: Sequence[str] | None = None
) -> bytes:
    """Return the body of a request for `records`, which have the same columns.

    JSON: an object for one record, an array for several; CSV: missing values empty.

    Args:
        header: whether CSV has a header line.
        csv_columns: the columns of CSV, in order; empty if no record has them. None: those of the records.
    """
    if media_type == JSON:
        return json.dumps(records[0] if len(records) == 1 else list(records), ensure_ascii=False, indent=1).encode()
    if media_type == JSON_LINES:
        return "".join(f"{json.dumps(dict(record), ensure_ascii=False)}\n" for record in records).encode()
    if media_type == CSV:
        text = io.StringIO(newline="")
        # With the terminator \r\n, it quotes cells that contain \r or \n.
        writer = csv.DictWriter(text, csv_columns or list(records[0]), extrasaction="ignore")
        if header:
            writer.writeheader()
        writer.writerows(records)
        return text.getvalue().encode()
    assert media_type == PARQUET, media_type
    sink = io.BytesIO()
    pq.write_table(pa.table({name: pa.array([record[name] for record in records]) for name in records[0]}), sink)
    return sink.getvalue()


_BFLOAT16_TOLERANCE = 0.02  # with OpenVINO; 300 reviews differed by up to 0.0018
_SUM_TOLERANCE = 1e-3
_LONGEST = 1_800.0  # seconds in which a package is loaded and answers
_MOST = 1 << 40  # bytes of a request: all rows are sent in one


@dataclass(frozen=True)
class Package:
    """An unpacked package.

    Attributes:
        archive: the packed file, for error messages.
        is_ours: whether code/inference.py is this project's, so that the answers' form is known.
    """

    archive: Path
    folder: Path
    fitted: FittedPreprocessing
    is_ours: bool


def run(step: StepRun) -> None:
    """Write payload.tar.gz with a sample request of each content type, and payload_check.json.

    Samples consist of default values, never of data, because many people can read the registry. Rows of processed_data
    are compared with the training job's predictions.

    Raises:
        ContractError: no package, an unknown column, inconsistent inputs, a package that fails, or
            answers that differ from the training job's predictions.
    """
    settings: PayloadSettings = step.settings
    package = _unpack(step.required_input("model_input") / ARCHIVED_MODEL, step.scratch / "package")
    samples = _write_requests(step, [_sample_record(package.fitted, settings)], "payload")
    answered = []
    for (content_type, file), answer in zip(samples.items(), _ask(package, samples, step.scratch, settings)):
        if package.is_ours:
            _probabilities(answer, content_type, package, records=1)
        answered.append({"file": file.name, "content_type": content_type, "answer": answer.decode(errors="replace")})
    compared = []
    expected = expected_records(step, package.folder, package.fitted)
    if expected is not None and expected.records:
        checks = _write_requests(step, expected.records, "check")
        # The probabilities of a variant are not those of the training job, which has measured the difference.
        default = settings.model_copy(update={"serving_onnx_variant": None})
        rounds = settings.serving_backend == "openvino" and "tolerance" not in settings.model_fields_set
        tolerance = _BFLOAT16_TOLERANCE if rounds else settings.tolerance
        for content_type, answer in zip(checks, _ask(package, checks, step.scratch, default)):
            each = {"content_type": content_type, "split": expected.split, "records": len(expected.records)}
            each["max_difference"] = _difference(answer, content_type, package, expected, tolerance)
            compared.append({**each, "tolerance": tolerance})
            logger.info("compared: %s", json.dumps(compared[-1]))
    if not package.is_ours:
        logger.info("code/%s is a user's script: its answers are not compared.", ENTRY_POINT)
    output = step.output("payload_sample")
    write_archive(output / PAYLOAD_ARCHIVE, {file.name: file for file in samples.values()})
    report = {"package_sha256": digest_of_file(package.archive), "samples": answered, "compared": compared}
    (output / PAYLOAD_CHECK).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    logger.info("answered: %s", ", ".join(file.name for file in samples.values()))


def _write_requests(step: StepRun, records: Sequence[Record], name: str) -> dict[str, Path]:
    """Write a request of the records in each content type."""
    settings: PayloadSettings = step.settings
    files = {}
    for number, content_type in enumerate(settings.content_types):
        words = "".join(character if character.isalnum() else "_" for character in content_type)
        media_type = MEDIA_TYPES[content_type]
        file = files[content_type] = step.scratch / f"{name}_{words}_{number}{SUFFIXES[media_type]}"
        header = settings.serving_csv_header != "absent"
        file.write_bytes(request_body(records, media_type, header=header, csv_columns=settings.serving_csv_columns))
    return files


def _unpack(archive: Path, folder: Path) -> Package:
    names = extract_archive(archive, folder)
    entry = f"{CODE_FOLDER}/{ENTRY_POINT}"
    for needed in (entry, artifacts.MODEL_ONNX, artifacts.PREPROCESSING):
        if needed not in names:
            raise ContractError(f"{archive}: has no {needed}", "Provide the output of the step Package.")
    ours = (folder / entry).read_bytes() == Path(inference.__file__).read_bytes()
    return Package(archive, folder, FittedPreprocessing.load(folder), ours)


def _sample_record(fitted: FittedPreprocessing, settings: PayloadSettings) -> Record:
    """Return one record with every column that the model needs."""
    columns = fitted.feature_inputs
    for name in settings.field_defaults:
        if name not in columns:
            raise ContractError(
                f"FIELD_DEFAULTS: {name!r} is not a column that the model needs{did_you_mean(name, columns)}",
                f"Use one of: {', '.join(columns)}.",
            )
    defaults: Record = dict.fromkeys(columns, settings.default_text_value)
    defaults |= dict.fromkeys(fitted.raw_numbers, settings.default_numeric_value) | dict.fromkeys(fitted.dates)
    return defaults | settings.field_defaults


def _ask(package: Package, requests: Mapping[str, Path], scratch: Path, settings: RecordSettings) -> list[bytes]:
    """Return the answers of a process that can import only the package's project code.

    Args:
        requests: file of each request's body, by content type.
    """
    task, answers = scratch / "task.json", scratch / "answers.json"
    content = {
        "package": str(package.folder),
        "guarded": package.is_ours,
        "requests": [
            {"file": str(file), "content_type": content_type, "accept": _accept(content_type)}
            for content_type, file in requests.items()
        ],
        "answers": str(answers),
    }
    task.write_text(json.dumps(content), "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ServingSettings.variables()}
    record_settings = settings.model_dump(include=set(RecordSettings.model_fields))
    served = ServingSettings(serving_max_bytes=_MOST, serving_max_decoded_bytes=_MOST, **record_settings)
    try:
        done = subprocess.run(
            [sys.executable, "-I", ask_package.__file__, str(task)],
            cwd=scratch,
            env=environment | served.to_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired as error:
        raise ContractError(
            f"{package.archive}: the process that loads it and answers {len(requests)} requests did not end within "
            f"{_LONGEST:.0f} s",
            "Look in the scripts of the package for a call that waits, such as one of the network or of input().",
        ) from error
    if done.returncode != 0 or not answers.is_file():
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ContractError(
            f"{package.archive}: the process that loads it ended with {done.returncode}: {last}", "Package it again."
        )
    result = json.loads(answers.read_text("utf-8"))
    if "error" in result:
        logger.error("%s", result["detail"])
        raise ContractError(f"{package.archive}: failed to answer: {result['error']}", result["fix"])
    logger.info("the package was loaded in %.1f s in a fresh process", result["load_seconds"])
    return [base64.b64decode(answer) for answer in result["answers"]]


def _accept(content_type: str) -> str:
    return CSV if MEDIA_TYPES[content_type] == CSV else JSON


def _probabilities(answer: bytes, content_type: str, package: Package, *, records: int) -> np.ndarray:
    """Return an answer's probabilities, and check their form. [N, K]"""
    classes = len(package.fitted.class_labels)
    if _accept(content_type) == CSV:
        lines = csv.reader(io.StringIO(answer.decode(), newline=""))  # a label may contain a line break
        rows = [cells[-classes:] for cells in lines]
    else:
        rows = [entry[PROBABILITIES] for entry in json.loads(answer)["predictions"]]
    probabilities = np.array(rows, np.float64)
    sums = probabilities.sum(axis=-1)
    if probabilities.shape != (records, classes) or not np.all(np.abs(sums - 1) < _SUM_TOLERANCE):
        raise ContractError(
            f"{package.archive}: answers {content_type} with {len(rows)} rows that are not probabilities of {records} "
            f"records and {classes} classes",
            "Package the model again.",
        )
    return probabilities


def _difference(
    answer: bytes, content_type: str, package: Package, expected: Expected, tolerance: float
) -> float | None:
    """Return the largest difference from the training job's probabilities; None if they are not compared.

    Raises:
        ContractError: it is larger than `tolerance`.
    """
    if not package.is_ours:
        return None
    served = _probabilities(answer, content_type, package, records=len(expected.records))
    if expected.probabilities is None:
        return None
    differences = np.abs(served - expected.probabilities).max(axis=1)  # [N]
    worst = int(differences.argmax())
    if not differences[worst] <= tolerance:  # true for NaN
        here, there = (np.array2string(each[worst], precision=6) for each in (served, expected.probabilities))
        raise ContractError(
            f"the package answers record {expected.ids[worst]!r} of {expected.split}, sent as {content_type}, with "
            f"{here}; the training job predicted {there}; they differ by {differences[worst]:.2g}, more than "
            f"TOLERANCE={tolerance:g}",
            "Provide the package of the model that made the predictions, and the data that it scored.",
        )
    return float(differences[worst])
