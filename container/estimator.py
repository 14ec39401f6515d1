"""TextTableClassifier: `init` and `train` as an estimator of scikit-learn, for notebooks."""

import html
import json
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from container.job.failure import FIX
from container.serving.predictor import Predictor
from container.tables.records import records_to_table
from container.tables.values import keys
from contracts import artifacts
from contracts.errors import ContractError
from contracts.file_systems import copy_folder
from contracts.paths import JobPaths

# Settings that are options of init; the others are hyperparameters.
_OPTIONS = ("id", "text", "number", "category", "date", "ignore", "group", "time", "tokenizer", "map_label", "null")
_CLASSES = "estimator.json"
_LAST_LINES = 30


class TextTableClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of tables with texts: a job that `init` makes and `train` runs, in other processes.

    Args:
        label: the column of X with the labels, where fit gets no y.
        root: the job's folder, which each fit replaces; None: a temporary one, which is removed with the estimator.
        settings: hyperparameters, and options of init by name: text=["review"], group="customer".
        verbose: print what init and train print.

    Attributes:
        classes_: the labels, sorted. [K]
        root_: the job's folder.
        metrics_: the content of metrics.json.
        n_features_in_, feature_names_in_: of X, without the label.
    """

    def __init__(
        self,
        *,
        label: str | None = None,
        root: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        self.label = label
        self.root = root
        self.settings = settings
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, label: str | None = None, root: str | Path | None = None, **settings: Any
    ) -> Self:
        """Train on a table; rows without a label are left out. The index of X has no meaning.

        Args:
            X: a DataFrame, or an array. [N, F]
            y: labels; None: those of the column `label` of X. [N]
            label, root, settings: instead of those of the estimator; settings are added to them.

        Raises:
            ContractError: the table is no job, or the training failed; the cause is that of init or train.
        """
        frame, name = self._frame(X, fitting=True), label or self.label
        if y is None and (name is None or name not in frame.columns):
            cause = f"requires y to be passed, but the target y is None; label: X has no column {name!r}, only "
            raise ContractError(cause + ", ".join(frame.columns[:20]), "Pass y, or name the column with label=.")
        own = frame.pop(name) if name in frame.columns else None  # also beside y: it is no input
        labels: pd.Series = pd.Series(_labels_of(y)) if own is None or y is not None else own
        check_consistent_length(frame, labels)
        name = name or next(name for name in ("label", "target", "_label") if name not in frame.columns)
        known: pd.Series = labels.dropna()
        if known.nunique() < 2:
            cause = f"Classifier can't train when only one class is present: {known.unique().tolist()}"
            raise ContractError(cause, "Pass rows of two classes or more.")
        if known.dtype.kind == "f":
            check_classification_targets(known.to_numpy())
        self._remember(frame, X)
        self._use_root(root or self.root)
        self._run_job(frame.assign(**{name: labels.to_numpy()}), name, {**(self.settings or {}), **settings})
        classes = [value.item() if isinstance(value, np.generic) else value for value in known.unique()]
        self._load(classes)
        (self.root_ / _CLASSES).write_text(json.dumps(classes), encoding="utf-8")
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, in the order of classes_. [N, K]"""
        return self._loaded().predict(self._frame(X))[:, self._order]

    def predict(self, X: Any) -> np.ndarray:
        """Return the decided labels: by the job's threshold for two classes, else the most probable. [N]"""
        decided = self._loaded().decision.decide(self._loaded().predict(self._frame(X)))
        return self.classes_[np.argsort(self._order)[decided]]

    def explain(self, X: Any, **how: Any) -> list[dict[str, Any]]:
        """Return the reasons for each prediction; see Predictor.explain."""
        return self._loaded().explain(self._frame(X), **how)

    def save(self, folder: str | Path) -> Path:
        """Copy the model and its evaluation to a new folder, for `load`; return its path."""
        self._loaded()
        source, target = JobPaths.resolve(self.root_), JobPaths.resolve(folder)
        if target.model.exists():
            raise ContractError(f"save: {target.model} exists", "Name a new folder.")
        for copied, copy in ((source.model, target.model), (source.output_data, target.output_data)):
            copy_folder(copied, copy)
        (target.root / _CLASSES).write_text(json.dumps(self.classes_.tolist()), encoding="utf-8")
        return target.root

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the estimator of a saved folder, or of the folder of any finished job."""
        loaded, file = cls(root=folder), Path(folder) / _CLASSES
        loaded.root_ = Path(folder)
        loaded._load(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None)
        loaded.n_features_in_ = len(loaded._loaded().feature_inputs)
        return loaded

    @property
    def report_(self) -> Path:
        """Return the path of report.html."""
        return JobPaths.resolve(self.root_).output_data / artifacts.REPORT

    def _repr_html_(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - a property that returns this
        if not self.__sklearn_is_fitted__():
            return f"<pre>{html.escape(repr(self))}</pre>"
        page = html.escape(self.report_.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="700" style="border: 0"></iframe>'

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_predictor", "_removal")}
        if hasattr(self, "_removal") and self.__sklearn_is_fitted__():
            paths = JobPaths.resolve(self.root_)
            files = [*paths.model.rglob("*"), *paths.output_data.rglob("*")]
            state["_files"] = {file.relative_to(paths.root): file.read_bytes() for file in files if file.is_file()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the files of a temporary folder, which may be gone, to another one."""
        files = state.pop("_files", {})
        if files:
            self._use_root(None)
            state["root_"] = self.root_
        for name, content in files.items():
            (self.root_ / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root_ / name).write_bytes(content)
        super().__setstate__(state)

    def _frame(self, X: Any, *, fitting: bool = False) -> pd.DataFrame:
        """Return a copy of X with columns named by texts, and rows numbered from 0."""
        if isinstance(X, pd.DataFrame):
            frame = X.reset_index(drop=True)
            frame.columns = [".".join(map(str, name if isinstance(name, tuple) else [name])) for name in frame.columns]
            return frame
        if np.asarray(X).ndim == 1:  # scikit-learn's error has all values
            cause = f"X: is a {type(X).__name__} of one dimension"
            raise ContractError(cause, "Pass a table, e.g. pd.DataFrame(X). Reshape your data if it is an array.")
        array = cast(Any, check_array)(X, dtype=None, ensure_all_finite="allow-nan", estimator=self)
        if not fitting and self.__sklearn_is_fitted__() and array.shape[1] != self.n_features_in_:
            raise ContractError(
                f"X has {array.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input",
                "Pass the columns of the fitted array.",
            )
        return pd.DataFrame({f"x{i}": column for i, column in enumerate(array.T)})

    def _remember(self, frame: pd.DataFrame, X: Any) -> None:
        self.n_features_in_ = frame.shape[1]
        if isinstance(X, pd.DataFrame) and all(isinstance(name, str) for name in X.columns):
            self.feature_names_in_ = np.array(frame.columns, object)
        else:
            vars(self).pop("feature_names_in_", None)

    def _use_root(self, root: str | Path | None) -> None:
        vars(self).pop("classes_", None)
        if root is None:
            folder = tempfile.mkdtemp(prefix="text-table-")
            self._removal = weakref.finalize(self, shutil.rmtree, folder, True)
            root = folder
        self.root_ = Path(root).absolute()
        self.root_.mkdir(parents=True, exist_ok=True)

    def _run_job(self, table: pd.DataFrame, label: str, settings: Mapping[str, Any]) -> None:
        """Make the job and run it; its settings are those that init writes, with the user's."""
        options: list[str] = []
        if weight := settings.get("weight_name"):  # no input of the model
            ignored = settings.get("ignore") or []
            settings = {**settings, "ignore": [*([ignored] if isinstance(ignored, str) else ignored), weight]}
        for name in _OPTIONS:
            if (value := settings.get(name)) is not None:
                options += [f"--{name.replace('_', '-')}", *([value] if isinstance(value, str) else map(str, value))]
        with tempfile.TemporaryDirectory(prefix="table-") as scratch:
            file = Path(scratch) / "table.parquet"
            pq.write_table(records_to_table(table), file)
            self._run("init", str(file), "--label", label, "--force", *options)
        path = JobPaths.resolve(self.root_).hyperparameter_files[-1]
        own = {name: value for name, value in settings.items() if name not in _OPTIONS}
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **own}), encoding="utf-8")
        self._run("train", "--fresh")

    def _run(self, command: str, *arguments: str) -> None:
        """Run a command of the container; raise ContractError with what it printed last where it fails."""
        line = [sys.executable, "-m", "container", command, "--root", str(self.root_), *arguments]
        last: deque[str] = deque(maxlen=_LAST_LINES)
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace"
        ) as process:
            assert process.stdout is not None
            try:
                for printed in process.stdout:
                    last.append(printed)
                    if self.verbose:
                        print(printed, end="", flush=True)
            except BaseException:  # a notebook may interrupt its kernel alone
                process.terminate()
                process.communicate()
                raise
        if process.returncode:
            failure = JobPaths.resolve(self.root_).root / "output/failure"
            cause = failure.read_text(encoding="utf-8") if command == "train" and failure.is_file() else "".join(last)
            if FIX in cause:  # then the traceback says nothing more
                cause, *_ = cause.partition("\nTraceback")
            raise ContractError(f"{command} ended with exit code {process.returncode}", cause.strip())

    def _load(self, classes: Sequence[Any] | None) -> None:
        """Load the model of the job; `classes` are the labels as the user has them."""
        self._predictor = Predictor.load(JobPaths.resolve(self.root_).model)
        names = self._predictor.class_labels
        classes = names if classes is None else classes
        of_key = dict(zip(_keys_of(classes), classes))
        classes = [of_key.get(key, name) for key, name in zip(_keys_of(names), names)]
        values = np.array(classes) if len({type(value) for value in classes}) == 1 else np.array(classes, object)
        self._order = np.argsort(values.astype(str) if values.dtype == object else values, kind="stable")
        self.classes_ = values[self._order]
        folder = JobPaths.resolve(self.root_).output_data
        self.metrics_ = json.loads((folder / artifacts.METRICS).read_text(encoding="utf-8"))

    def _loaded(self) -> Predictor:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"This {type(self).__name__} instance is not fitted yet. Call 'fit' first.")
        if not hasattr(self, "_predictor"):  # a copy from another process
            self._predictor = Predictor.load(JobPaths.resolve(self.root_).model)
        return self._predictor


def _labels_of(y: Any) -> np.ndarray:
    labels = np.asarray(y, None if isinstance(y, np.ndarray) or hasattr(y, "to_numpy") else object)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.ndim != 1:
        raise ContractError(f"y: has the shape {labels.shape}", "Pass one label per row.")
    return labels


def _keys_of(labels: Sequence[Any]) -> list[str | None]:
    """Return the text of each label, as files have it."""
    table = records_to_table([{"label": value} for value in labels])
    return keys(table["label"], "text").to_pylist()
