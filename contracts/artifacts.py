"""Name the files that a job writes, and the environment variables that it reads."""

import re

MODEL_STATE = "model.pth"
MODEL_ARTIFACTS = "model_artifacts.pth"
MODEL_ONNX = "model.onnx"
HYPERPARAMETERS = "hyperparameters.json"
FEATURE_COLUMNS = "feature_columns.txt"
IMPUTE_DICT = "impute_dict"  # .json is read; .pkl is for users
RISK_TABLE_MAP = "risk_table_map"
SELECTED_FEATURES = "selected_features.json"
TOKENIZER = "tokenizer"
PREPROCESSING = "preprocessing.json"
DECISION = "decision.json"  # how logits become probabilities and a class
MODEL_FILES = "files.json"  # the hash of every other file of the model
BASELINE = "baseline.json"  # what the monitor compares later data with
COMPANION = "companion.onnx"  # part of model.onnx; beside model.pth for PyTorch

MODEL_FIX = (
    "Name a complete model/ folder of one training job (unpack model.tar.gz), and use the version of this project that "
    "wrote it."
)

# The files that serving reads, in addition to tokenizer/ and the extra files of the ONNX graph.
SERVING_FILES = (
    MODEL_ONNX,
    HYPERPARAMETERS,
    FEATURE_COLUMNS,
    f"{IMPUTE_DICT}.json",
    f"{RISK_TABLE_MAP}.json",
    PREPROCESSING,
    DECISION,
)
TRAINED_WEIGHTS = (MODEL_STATE, MODEL_ARTIFACTS)
REQUIRED_MODEL_FILES = (
    *TRAINED_WEIGHTS,
    *SERVING_FILES,
    f"{IMPUTE_DICT}.pkl",
    f"{RISK_TABLE_MAP}.pkl",
    BASELINE,
    MODEL_FILES,
)


PREDICT_RESULTS = "predict_results.pth"
METRICS = "metrics.json"
HISTORY = "history.json"  # the values that training logged, by step
REPORT = "report.html"
LOG = "log.txt"  # of every run of the job in this folder, with details that are not printed
TENSORBOARD_EVAL = "tensorboard_eval"
CURVES = (f"{TENSORBOARD_EVAL}/roc_curve.png", f"{TENSORBOARD_EVAL}/pr_curve.png")
PROFILE = "profile"
COLLECTIVES = "collectives.rank"  # beginning of the names of the flight recorder's files
LABEL_ISSUES = "label_issues.csv"
TUNING, TUNING_SUMMARY = "tuning", "summary.json"  # of a search, in output/data/
OUT_OF_FOLD = "train_out_of_fold.parquet"  # with cross_fit, in output/data/
REQUIRED_EVALUATION_FILES = (
    PREDICT_RESULTS,
    METRICS,
    HISTORY,
    REPORT,
    *CURVES,
)

ONNX_TABULAR, ONNX_OUTPUT = "tabular", "probabilities"  # an input and the first output of model.onnx
# The other outputs of model.onnx, which are inputs of model.head.onnx: features.ROLE and features.ROLE.NAME. The output
# of model.head.onnx: logarithms of the probabilities, up to a constant of each record.
ONNX_FEATURES, ONNX_SCORES = "features.", "scores"
ROW_NUMBER = "row"  # column of the predictions without id_name: the number of the row in its channel, from 0
PROBABILITY_COLUMN = re.compile(r"prob_class_([0-9]{1,9})")

USE_PRECOMPUTED_IMPUTATION = "USE_PRECOMPUTED_IMPUTATION"
USE_PRECOMPUTED_RISK_TABLES = "USE_PRECOMPUTED_RISK_TABLES"


PREDICTED_LABEL = "predicted_label"  # the column of the decided label in predictions and responses


def probability_column(k: int) -> str:
    """Return the column of class k's probability in predictions."""
    return f"prob_class_{k}"


def onnx_file(variant: str | None) -> str:
    """Return the name of model.onnx or of one of its variants."""
    return MODEL_ONNX if variant is None else f"model.{variant}.onnx"


def head_file(variant: str | None) -> str:
    """Return the name of the graph of what follows the encoders in model.onnx, or in one of its variants."""
    return f"{onnx_file(variant).removesuffix('.onnx')}.head.onnx"


def tokenizer_folder(role: str) -> str:
    """Return the folder of a text field's tokenizer in the model folder; role is text, primary or secondary."""
    return TOKENIZER if role == "text" else f"{TOKENIZER}/{role}"
