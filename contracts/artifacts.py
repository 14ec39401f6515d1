"""Names of the files a job writes, and of the environment variables that steer it."""

MODEL_STATE = "model.pth"
MODEL_ARTIFACTS = "model_artifacts.pth"
MODEL_ONNX = "model.onnx"
HYPERPARAMETERS = "hyperparameters.json"
FEATURE_COLUMNS = "feature_columns.txt"
IMPUTE_DICT = "impute_dict"  # .pkl for people, .json is read
RISK_TABLE_MAP = "risk_table_map"
SELECTED_FEATURES = "selected_features.json"
TOKENIZER = "tokenizer"
PREPROCESSING = "preprocessing.json"
DECISION = "decision.json"  # from logits to probabilities to a decided class

REQUIRED_MODEL_FILES = (
    MODEL_STATE,
    MODEL_ARTIFACTS,
    MODEL_ONNX,
    HYPERPARAMETERS,
    FEATURE_COLUMNS,
    f"{IMPUTE_DICT}.pkl",
    f"{IMPUTE_DICT}.json",
    f"{RISK_TABLE_MAP}.pkl",
    f"{RISK_TABLE_MAP}.json",
    PREPROCESSING,
    DECISION,
)

# What serving reads, beside the tokenizer/ and the graph's own extra files.
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

INCOMPLETE = ".incomplete"  # where model/ is written first; inside it, so that a rename never crosses a mount

PREDICT_RESULTS = "predict_results.pth"
METRICS = "metrics.json"
REPORT = "report.html"
TENSORBOARD_EVAL = "tensorboard_eval"
PROFILE = "profile"
REQUIRED_EVALUATION_FILES = (
    PREDICT_RESULTS,
    METRICS,
    REPORT,
    f"{TENSORBOARD_EVAL}/roc_curve.png",
    f"{TENSORBOARD_EVAL}/pr_curve.png",
)

USE_PRECOMPUTED_IMPUTATION = "USE_PRECOMPUTED_IMPUTATION"
USE_PRECOMPUTED_RISK_TABLES = "USE_PRECOMPUTED_RISK_TABLES"


def onnx_file(variant: str | None) -> str:
    """Name of model.onnx or of one of its variants."""
    return MODEL_ONNX if variant is None else f"model.{variant}.onnx"


def tokenizer_folder(role: str) -> str:
    """Folder of a text field's tokenizer inside the model folder; role is text, primary or secondary."""
    return TOKENIZER if role == "text" else f"{TOKENIZER}/{role}"
