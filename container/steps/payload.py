"""Payload: load the package in a fresh process, send it requests, and write the sample requests."""

import base64
import csv
import hashlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from container.archives import extract_archive, write_archive
from container.preprocessing.fitted import FittedPreprocessing
from container.serving import inference
from container.serving.answers import PROBABILITIES
from container.steps import ask_package
from container.steps.check_records import Expected, expected_records, expressible
from container.steps.program import StepRun
from container.steps.sample_requests import Record, request_body, sample_name
from contracts import artifacts
from contracts.errors import ContractError
from contracts.serving import (
    CODE_FOLDER,
    CSV,
    ENTRY_POINT,
    JSON,
    MEDIA_TYPES,
    RecordSettings,
    ServingSettings,
)
from contracts.spelling import did_you_mean
from contracts.steps import ARCHIVED_MODEL, PAYLOAD_ARCHIVE, PAYLOAD_CHECK, PayloadSettings

logger = logging.getLogger(__name__)

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


@dataclass
class Question:
    """A request, its expected answer and its result.

    Attributes:
        file: contains the request's body.
        records: number of records in the request.
        expected: records and predictions to compare with; None for a sample request.
        answer: the body of the response.
        max_difference: between the answer's and the expected probabilities; None if they were not compared.
    """

    content_type: str
    media_type: str
    file: Path
    records: int
    expected: Expected | None = None
    answer: bytes = b""
    max_difference: float | None = None

    @property
    def accept(self) -> str:
        return CSV if self.media_type == CSV else JSON


def run(step: StepRun) -> None:
    """Write payload.tar.gz with a sample request of each content type, and payload_check.json.

    Samples consist of default values, never of data, because many people can read the registry. Rows of processed_data
    are compared with the training job's predictions.

    Raises:
        ContractError: no package, an unknown column, inconsistent inputs, a package that fails, or
            answers that differ from the training job's predictions.
    """
    settings: PayloadSettings = step.settings
    media_types = {name: MEDIA_TYPES[name] for name in settings.content_types}
    package = _unpack(step.required_input("model_input") / ARCHIVED_MODEL, step.scratch / "package")
    record = _sample_record(package.fitted, settings)

    def body_of(records: Sequence[Record], media_type: str) -> bytes:
        header = settings.serving_csv_header != "absent"
        return request_body(records, media_type, header=header, csv_columns=settings.serving_csv_columns)

    expected = expected_records(
        step.input("processed_data"),
        step.input("eval_output"),
        package=package.folder,
        fitted=package.fitted,
        count=settings.check_rows,
        most_tokens=settings.serving_max_tokens,
        scratch=step.scratch,
    )
    samples: list[Question] = []
    checks: list[Question] = []
    for number, (content_type, media_type) in enumerate(media_types.items()):
        file = step.scratch / sample_name(content_type, media_type, number)
        file.write_bytes(body_of([record], media_type))
        samples.append(Question(content_type, media_type, file, 1))
        if expected is not None and (sent := expressible(expected, media_type)).records:
            file = step.scratch / f"check_{number}"
            file.write_bytes(body_of(sent.records, media_type))
            checks.append(Question(content_type, media_type, file, len(sent.records), sent))
    if settings.serving_onnx_variant is None:
        _ask(package, [*samples, *checks], step.scratch, settings)
    else:  # its probabilities are not those of the training job, which has measured the difference
        _ask(package, samples, step.scratch, settings)
        _ask(package, checks, step.scratch, settings.model_copy(update={"serving_onnx_variant": None}))
    if package.is_ours:
        for question in (*samples, *checks):
            _check(question, package, settings.tolerance)
    else:
        logger.info("code/%s is a user's script: its answers are not compared.", ENTRY_POINT)
    output = step.output("payload_sample")
    write_archive(output / PAYLOAD_ARCHIVE, {question.file.name: question.file for question in samples})
    with package.archive.open("rb") as archive:
        digest = hashlib.file_digest(archive, "sha256").hexdigest()
    report = {
        "package_sha256": digest,
        "samples": [
            {
                "file": sample.file.name,
                "content_type": sample.content_type,
                "answer": sample.answer.decode(errors="replace"),
            }
            for sample in samples
        ],
        "compared": [
            {
                "content_type": question.content_type,
                "split": question.expected and question.expected.split,
                "records": question.records,
                "max_difference": question.max_difference,
                "tolerance": settings.tolerance,
            }
            for question in checks
        ],
    }
    (output / PAYLOAD_CHECK).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    logger.info("answered: %s", ", ".join(question.file.name for question in samples))
    for question in checks:
        assert question.expected is not None
        difference = question.max_difference
        result = "answered" if difference is None else f"differ from the training job's by at most {difference:.1e}"
        logger.info(
            "%d records of %s as %s: %s", question.records, question.expected.split, question.content_type, result
        )


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
    for name in settings.field_defaults:
        if name not in fitted.feature_inputs:
            raise ContractError(
                f"FIELD_DEFAULTS: {name!r} is not a column that the model needs"
                + did_you_mean(name, fitted.feature_inputs),
                f"Use one of: {', '.join(fitted.feature_inputs)}.",
            )
    numeric = set(fitted.numeric_columns)
    defaults = {
        name: settings.default_numeric_value if name in numeric else settings.default_text_value
        for name in fitted.feature_inputs
    }
    return defaults | settings.field_defaults


def _ask(package: Package, questions: Sequence[Question], scratch: Path, settings: RecordSettings) -> None:
    """Store the answers of a process that can import only the package's project code."""
    task, answers = scratch / "task.json", scratch / "answers.json"
    requests = [
        {"file": str(question.file), "content_type": question.content_type, "accept": question.accept}
        for question in questions
    ]
    content = {
        "package": str(package.folder), "guarded": package.is_ours, "requests": requests, "answers": str(answers)
    }  # fmt: skip
    task.write_text(json.dumps(content), "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ServingSettings.variables()}
    served = ServingSettings(
        serving_max_bytes=_MOST,
        serving_max_decoded_bytes=_MOST,
        serving_max_tokens=settings.serving_max_tokens,
        serving_csv_header=settings.serving_csv_header,
        serving_csv_columns=settings.serving_csv_columns,
        serving_onnx_variant=settings.serving_onnx_variant,
    )
    environment |= served.to_environment()
    command = [sys.executable, "-I", ask_package.__file__, str(task)]
    try:
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired as error:
        raise ContractError(
            f"{package.archive}: the process that loads it and answers {len(questions)} requests did not end within "
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
    for question, answer in zip(questions, result["answers"], strict=True):
        question.answer = base64.b64decode(answer)


def _probabilities(question: Question, package: Package) -> np.ndarray:
    """Return an answer's probabilities, and check their form. [N, K]"""
    if question.accept == CSV:
        lines = csv.reader(io.StringIO(question.answer.decode(), newline=""))  # a label may contain a line break
        rows = [cells[-len(package.fitted.class_labels) :] for cells in lines]
    else:
        rows = [entry[PROBABILITIES] for entry in json.loads(question.answer)["predictions"]]
    probabilities = np.array(rows, np.float64)
    shape = (question.records, len(package.fitted.class_labels))
    if probabilities.shape != shape or not np.all(np.abs(probabilities.sum(axis=1) - 1) < _SUM_TOLERANCE):
        raise ContractError(
            f"{package.archive}: answers {question.content_type} with {len(rows)} rows that are not probabilities "
            f"of {shape[0]} records and {shape[1]} classes",
            "Package the model again.",
        )
    return probabilities


def _check(question: Question, package: Package, tolerance: float) -> None:
    """Check an answer's form, and compare it with the training job's probabilities if they are known."""
    served, expected = _probabilities(question, package), question.expected
    if expected is None or expected.probabilities is None:
        return
    differences = np.abs(served - expected.probabilities).max(axis=1)  # [N]
    worst = int(differences.argmax())
    if not differences[worst] <= tolerance:  # true for NaN
        raise ContractError(
            f"the package answers record {expected.ids[worst]!r} of {expected.split}, sent as {question.content_type}, "
            f"with {_figures(served[worst])}; the training job predicted {_figures(expected.probabilities[worst])}; "
            f"they differ by {differences[worst]:.2g}, more than TOLERANCE={tolerance:g}",
            "Provide the package of the model that made the predictions, and the data that it scored.",
        )
    question.max_difference = float(differences[worst])


def _figures(probabilities: np.ndarray) -> str:
    return f"[{', '.join(f'{value:.6f}' for value in probabilities)}]"
