"""Small tables, a tokenizer and whole job folders for the tests of preprocessing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from container.preprocessing.fingerprint import tokenizer_digest
from container.preprocessing.fit import fit_preprocessing, learn_label_map
from container.preprocessing.precomputed import Precomputed
from container.preprocessing.risk_tables import FoldedRisks
from container.preprocessing.scan import TableColumns, scan_train
from container.preprocessing.transform import Preprocessor
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.tokenization import TextProcessor
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.jobs import NO_WEIGHTS

WORDS = ["good", "bad", "shirt", "late", "parcel", "thank", "you", "##s", "##ing"]


def write_tokenizer(folder: Path) -> Path:
    """A WordPiece tokenizer of letters and a few words, with a configuration, as an encoder folder."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(tokens),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
    return folder


def settings(**given: Any) -> Hyperparameters:
    """Hyperparameters over the columns id, text, x, y (numbers), c (category) and label."""
    defaults = {
        "id_name": "id",
        "text_name": "text",
        "label_name": "label",
        "tab_field_list": ["x", "y"],
        "cat_field_list": ["c"],
        "model_class": "multimodal_bert",
        "max_sen_len": 12,
        "preprocess_workers": 1,
    }
    return parse_hyperparameters({**defaults, **given})


def table(rows: int = 40, *, start: int = 0, **columns: list[Any]) -> pa.Table:
    """Rows with gaps in every feature; `columns` replaces whole columns."""
    numbers = range(start, start + rows)
    made: dict[str, Any] = {
        "id": [f"{i:05d}" for i in numbers],
        "text": [
            None if i % 7 == 3 else f"good shirt number {i}" if i % 2 else "late parcel, thank you" for i in numbers
        ],
        "x": [None if i % 5 == 1 else i * 1.5 for i in numbers],
        "y": [None if i % 11 == 2 else i % 4 for i in numbers],
        "c": [None if i % 9 == 4 else "abc"[i % 3] for i in numbers],
        "label": [int((i * 7) % 5 > 1) for i in numbers],
    }
    return pa.table({**made, **columns})


def write_table(path: Path, found: pa.Table) -> Path:
    """In the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(found, path)
    else:
        options = pa_csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        pa_csv.write_csv(found, path, options)
    return path


def write_job(root: Path, *, suffix: str = ".csv", **splits: pa.Table) -> JobPaths:
    """A job folder with train, val and test, and a pretrained encoder named tiny."""
    paths = JobPaths.resolve(root)
    for number, split in enumerate(("train", "val", "test")):
        found = splits.get(split, table(60 if split == "train" else 20, start=100 * number))
        write_table(paths.channel(split) / f"data{suffix}", found)
    write_tokenizer(paths.pretrained / "tiny")
    return paths


def fit(folder: Path, found: pa.Table, hp: Hyperparameters | None = None) -> tuple[Preprocessor, FoldedRisks | None]:
    """A preprocessor fitted on `found`, and the out-of-fold values of its rows."""
    return fit_file(folder, write_table(folder / "train" / "part.parquet", found), hp or settings())


def fit_file(folder: Path, path: Path, hp: Hyperparameters) -> tuple[Preprocessor, FoldedRisks | None]:
    """A preprocessor fitted on a file, and the out-of-fold values of its rows."""
    statistics = scan_train([path], hp, TableColumns.of(hp))
    labels = learn_label_map(statistics, hp, where="train")
    fitted, folds = fit_preprocessing(statistics, hp, labels=labels, precomputed=Precomputed(None, None), where="train")
    encoder = write_tokenizer(folder / "encoder")
    tokenizer = ChunkTokenizer.from_folder(encoder)
    digests = {field.role: tokenizer_digest(encoder) for field in fitted.text_fields}
    fitted = replace(fitted, tokenizer_digests=digests)
    return Preprocessor(fitted, {field.role: TextProcessor(field, tokenizer) for field in fitted.text_fields}), folds
