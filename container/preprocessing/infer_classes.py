"""Find the classes of a job that does not set them: the labels of train."""

import logging
from pathlib import Path
from typing import Any

from container.preprocessing.labels import LabelCollector, check_classification, learned_labels
from container.tables.channel_files import iter_tables
from container.tables.data_files import find_data_files
from contracts.errors import ContractError, shown
from contracts.hyperparameter_files import GivenSettings
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

_ROWS = 16384
_MOST_CLASSES = 10_000  # of num_classes


def with_classes_of_train(given: GivenSettings, paths: JobPaths) -> GivenSettings:
    """Return settings with num_classes, is_binary and multiclass_categories; those that lack are read from train.

    Two classes need no list: their order is that of `learned_labels`.

    Raises:
        ContractError: no label column, a label of a regression, or another number of classes than num_classes.
    """
    values = given.values
    known = {name for name in ("num_classes", "is_binary", "multiclass_categories") if values.get(name) is not None}
    if "multiclass_categories" in known or str(values.get("is_binary")).lower() == "true":
        return given
    if not isinstance(label := values.get("label_name"), str) or str(values.get("num_classes")) == "2":
        return given  # its absence is an error of the settings; two classes need no list
    files = find_data_files(paths.channel("train"), values.get("train_filename"))
    classes, counts = _labels(files, label)
    if "num_classes" in known and str(values["num_classes"]) != str(len(classes)):
        raise ContractError(
            f"num_classes: is {shown(values['num_classes'])}, but the column {label!r} of train has {len(classes)} "
            f"labels: {shown(classes)}",
            "Correct num_classes, or list every label in multiclass_categories.",
        )
    if len(classes) < 2 or (len(classes) == 2 and not known):
        return given  # what is wrong with one label is said where the data is prepared
    inferred: dict[str, Any] = {"num_classes": len(classes), "is_binary": False, "multiclass_categories": classes}
    lacking = {name: value for name, value in inferred.items() if name not in known}
    found = f"{len(classes)} labels: {counts}"
    logger.info("train: column %r has %s; this sets %s.", label, found, ", ".join(lacking))
    return given._replace(values={**values, **lacking})


def _labels(files: list[Path], column: str) -> tuple[list[int | str], str]:
    """Return the labels in the order of their class ids, and the rows of the first of them for the log."""
    labels = LabelCollector(column, allowed=_MOST_CLASSES)
    for part in iter_tables(files, [column], rows_per_batch=_ROWS):
        labels.add(part.table[column], origin=part.origin)
    check_classification(column, labels.counts, where=str(files[0].parent))
    ordered = list(learned_labels(column, labels.counts).labels)
    return ordered, shown({label: labels.counts[str(label)] for label in ordered})
