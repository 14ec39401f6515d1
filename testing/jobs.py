"""Small jobs for the tests: a table with a learnable label, a folder laid out like /opt/ml, a run as a real process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from contracts import artifacts
from contracts.paths import JobPaths
from testing.warm import WarmProcess

REPOSITORY = Path(__file__).parent.parent
TINY_ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 300,
}
ONE_LAYER = {**TINY_ENCODER, "num_hidden_layers": 1}  # exported in two thirds of the time
NO_WEIGHTS = b"\x02\0\0\0\0\0\0\0{}"  # a file of safetensors without tensors
CONFIGURATION: dict[str, Any] = {
    "id_name": "order_id",
    "text_name": "chat",
    "label_name": "label",
    "tab_field_list": ["price", "quantity"],
    "cat_field_list": ["color"],
    "model_class": "multimodal_bert",
    "tokenizer": "from_scratch",
    "encoder_config": TINY_ENCODER,
    "hidden_common_dim": 16,
    "max_sen_len": 24,
    "batch_size": 8,
    "max_epochs": 2,
    "lr": 2e-3,
    "val_check_interval": 1.0,
    "log_every_n_steps": 1,
    "preprocess_workers": 1,
}
TWO_TEXTS: dict[str, Any] = {
    "text_name": None,
    "primary_text_name": "chat",
    "secondary_text_name": "events",
    "model_class": "trimodal_bert",
}
JOINED_TEXTS: dict[str, Any] = {"text_name": ["chat", "events"]}
DATE_AND_WEIGHT: dict[str, Any] = {"date_field_list": ["day"], "weight_name": "weight"}  # of dated_table
NO_DROPOUT: dict[str, Any] = {
    "dropout": 0.0,
    "fusion_dropout": 0.0,
    "encoder_config": {**TINY_ENCODER, "hidden_dropout_prob": 0.0},
}

_GOOD = ["great item", "arrived early", "very happy", "works well", "thank you so much"]
_BAD = ["broken item", "never arrived", "want a refund", "terrible seller", "does not work"]
_PLAIN = ["hello there", "about my order", "the box was brown", "please answer", "it is for my sister"]


def table(rows: int, *, seed: int, classes: int = 2) -> pd.DataFrame:
    """A table whose label follows from chat, events, price and color; with gaps, markers, HTML and emoji."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, rows)
    chats, events = [], []
    for y in label:
        sentences = list(rng.choice(_PLAIN, rng.integers(1, 5)))
        sentences.append(str(rng.choice(_BAD if y == 0 else _GOOD)) + " " + "again " * int(y))
        rng.shuffle(sentences)
        marked = rng.random() < 0.7
        chats.append("".join(f"[bom]{s} <b>&amp;</b> 😀[eom]" for s in sentences) if marked else ". ".join(sentences))
        events.append("".join(f"[bom]2026-01-{d:02d} {'late' if y == 0 else 'on time'}[eom]" for d in range(1, 4)))
    price = np.round(rng.normal(20 + 10 * label, 5), 2)
    frame = pd.DataFrame(
        {
            "order_id": [f"{i:05d}" for i in range(rows)],
            "chat": chats,
            "events": events,
            "price": np.where(rng.random(rows) < 0.1, np.nan, price),
            "quantity": rng.integers(1, 9, rows),
            "color": [["red", "green", "blue"][(y + int(rng.random() < 0.4)) % 3] for y in label],
            "label": label,
        }
    )
    frame.loc[rng.random(rows) < 0.05, "chat"] = None
    frame.loc[rng.random(rows) < 0.05, "color"] = None
    return frame


def dated_table(rows: int, *, seed: int, classes: int = 2) -> pd.DataFrame:
    """The table with a date and a weight of each record; a quarter of the weights is 0."""
    frame = table(rows, seed=seed, classes=classes)
    return frame.assign(day=pd.date_range("2026-01-01", periods=rows, freq="31h"), weight=frame["quantity"] % 4)


def write_job(
    root: Path,
    *,
    overrides: dict[str, Any] | None = None,
    rows: tuple[int, int, int] = (60, 24, 24),
    file_format: str = "csv",
    classes: int = 2,
    frames: dict[str, pd.DataFrame] | None = None,
) -> JobPaths:
    """Lay a job out under `root`: tables for train, val and test, and hyperparameters as strings.

    Args:
        frames: the tables by split; default: `table`, or `dated_table` if the settings name dates or weights.
    """
    paths = JobPaths(root)
    make = dated_table if any((overrides or {}).get(name) for name in DATE_AND_WEIGHT) else table
    for i, (split, count) in enumerate(zip(("train", "val", "test"), rows)):
        frame = (frames or {}).get(split, make(count, seed=i, classes=classes))
        write_table(frame, paths.channel(split), file_format)
    write_hyperparameters(paths, overrides)
    return paths


def write_table(frame: pd.DataFrame, folder: Path, file_format: str, name: str = "data") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{file_format}"
    if file_format == "parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="," if file_format == "csv" else "\t")


def write_hyperparameters(paths: JobPaths, overrides: dict[str, Any] | None = None) -> None:
    """CONFIGURATION with `overrides` (None removes a key), every value a string as the service delivers it."""
    merged = {**CONFIGURATION, **(overrides or {})}
    values = {name: json.dumps(value) for name, value in merged.items() if value is not None}
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "hyperparameters.json").write_text(json.dumps(values))


def start_train(
    paths: JobPaths, *, warm: bool = False, arguments: Sequence[str] = (), **environment: str
) -> subprocess.Popen | WarmProcess:
    """Start `python -m container train`; its output goes to train.log under the root.

    Args:
        warm: fork it, and what it starts, from processes that have imported everything (testing/warm.py).
    """
    if warm:
        return WarmProcess(
            ["-m", "container", "train", "--root", str(paths.root), *arguments],
            environment={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            output=paths.root / "train.log",
        )
    with (paths.root / "train.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "container", "train", "--root", str(paths.root), *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait_for(condition: Callable[[], Any], *, seconds: float = 120) -> Any:
    """Return the value of the condition once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def start_until(
    paths: JobPaths, reached: str | Callable[[], bool], **environment: str
) -> subprocess.Popen | WarmProcess:
    """Start a warm job, and return its process when it has printed `reached`, or when `reached()` is true."""
    process = start_train(paths, warm=True, **environment)
    is_reached = reached if callable(reached) else lambda: reached in printed(paths)
    wait_for(lambda: is_reached() or process.poll() is not None)
    assert is_reached(), printed(paths)[-4000:]
    return process


def run_train(
    paths: JobPaths, *, expect: int = 0, warm: bool = True, arguments: Sequence[str] = (), **environment: str
) -> str:
    """Run the job to its end and return its log; the exit code must be `expect`. See start_train for `warm`."""
    process = start_train(paths, warm=warm, arguments=arguments, **environment)
    try:
        exit_code = process.wait(timeout=600)
    finally:
        process.kill()
    log = log_of(paths)
    assert exit_code == expect, f"exit code {exit_code}\n{log[-4000:]}"
    return log


def run_python(code: str, *arguments: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a process of its own, which finds this repository from every folder; return it with its output."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def printed(paths: JobPaths) -> str:
    """Return what the runs of the job have printed so far."""
    path = paths.root / "train.log"
    return path.read_text() if path.is_file() else ""


def log_of(paths: JobPaths) -> str:
    """Return what `run_train` printed, then the details that only output/data/log.txt contains."""
    text, details = printed(paths), paths.output_data / artifacts.LOG
    known = {line[9:] for line in text.splitlines()}  # without the clock
    lines = details.read_text().splitlines() if details.is_file() else []
    return "\n".join([text.rstrip("\n"), *(line for line in lines if line[24:] not in known), ""])


def metrics(paths: JobPaths) -> dict[str, Any]:
    return json.loads((paths.output_data / "metrics.json").read_text())


def failure_line(paths: JobPaths) -> str:
    """The first line of output/failure, after checking that both failure files say the same."""
    first, second = (path.read_text() for path in paths.failure_files)
    assert first == second
    return first.splitlines()[0]


def write_letters_tokenizer(folder: Path) -> int:
    """A WordPiece tokenizer whose vocabulary is the letters and digits; returns its size."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    characters = "abcdefghijklmnopqrstuvwxyz0123456789.-&"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(tokens)


def write_checkpoint(checkpoints: Path, content: Mapping[str, Any], **files: str) -> Path:
    """Write a complete checkpoint as far as it is read without torch: its state.json and more files; return it."""
    folder = checkpoints / f"epoch=0-step={content['step']}.ckpt"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".metadata": "", "state.json": json.dumps(content), **files}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "manifest.json").write_text(json.dumps({name: len(text) for name, text in texts.items()}))
    return folder
