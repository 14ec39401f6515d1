"""Choose the hyperparameters of the job that `init` makes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from container.init.profile import RawTables
from container.preprocessing.labels import learned_labels
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.input_files import exists
from contracts.model_classes import FROM_SCRATCH
from contracts.text_fields import EVENT_TEXT_STEPS, FULL_TEXT_STEPS, TextStep
from contracts.value_types import ISO, UTC_SUFFIX

LENGTHS = (64, 128, 256, 512)  # of max_sen_len
_TOKENS_PER_WORD = 1.4
_POSITIVE = ("1", "yes", "y", "true", "t", "positive", "pos")


def hyperparameters_of(
    raw: RawTables, *, tokenizer: tuple[str, str], group: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the hyperparameters, and for some of them the reason.

    Args:
        tokenizer: the encoder, and the reason.
        group: the column whose rows stay together, also in the folds of the training rows.

    Raises:
        ContractError: the columns contradict each other.
    """
    texts, numbers = raw.of_role("text"), raw.of_role("number")
    why: dict[str, str] = {}
    values: dict[str, Any] = {"preset": "recommended"}
    if ids := raw.of_role("id"):
        values["id_name"] = ids[0]
    reads_table = bool(numbers or raw.of_role("date") or raw.of_role("category"))
    if not texts:
        model_class = "tabular"
        why["model_class"] = "no column is a text; to read one as text, name it with --text"
    elif len(texts) == 2:  # docs/presets.md has the measurement
        values |= {"primary_text_name": texts[0], "secondary_text_name": texts[1]}
        why["secondary_text_name"] = "each of two texts has an encoder; text_name with both names would join them"
        model_class = "trimodal_bert"
    else:
        values["text_name"] = texts[0] if len(texts) == 1 else texts
        if len(texts) > 1:
            why["text_name"] = f"{len(texts)} texts are joined to one sequence for one encoder"
        model_class = "multimodal_bert" if reads_table else "bert"
    values |= {"label_name": raw.label, "tab_field_list": numbers, "cat_field_list": raw.of_role("category")}
    if dates := raw.of_role("date"):
        values["date_field_list"] = dates
    values |= _notations(raw)
    if group is not None:
        role = raw.columns[group].role
        if role == "ignored":
            values["group_name"] = group
        else:
            why["group_name"] = f"not set, because {group!r} is a column of role {role}; folds of train divide its rows"
    values["multiclass_categories"], why["multiclass_categories"] = _classes(raw)
    values["model_class"] = model_class
    if texts:
        of_texts = {"tokenizer": tokenizer, "max_sen_len": _length(raw, texts), **_text_steps(raw, texts)}
        values |= {name: value for name, (value, _) in of_texts.items()}
        why |= {name: reason for name, (_, reason) in of_texts.items()}
    parse_hyperparameters(values)
    return values, why


def tokenizer_in(folder: Path) -> tuple[str, str]:
    """Return the encoder to use, and why: the only one in input/data/pretrained/, else from_scratch."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if exists(folder) else []
    if len(found) == 1:
        return found[0], f"the encoder in {folder}"
    return FROM_SCRATCH, (
        "a small encoder with random weights; a pretrained one is usually better for texts: set tokenizer to its "
        "folder or to a Hugging Face id, e.g. sentence-transformers/all-MiniLM-L6-v2"
    )


def _classes(raw: RawTables) -> tuple[list[int | str], str]:
    """Return the labels in the order of their class ids, and the reason of the order."""
    labels = list(learned_labels(raw.label, raw.labels).labels)
    if len(labels) > 2:
        return labels, "numbers by value, then texts alphabetically"
    positive = [label for label in labels if str(label).lower() in _POSITIVE]
    if len(positive) == 1:
        return sorted(labels, key=lambda label: label == positive[0]), f"class 1 is {positive[0]}"
    counts: Mapping[str, int] = raw.labels
    rarer = min(labels[::-1], key=lambda label: counts[str(label)])
    is_rarer = len({counts[str(label)] for label in labels}) > 1
    why = "the rarer label" if is_rarer else "the last label; both have as many rows"
    return sorted(labels, key=lambda label: label == rarer), f"class 1 is {rarer}, {why}"


def _notations(raw: RawTables) -> dict[str, Any]:
    """Return the settings that say how cells are read, where it is not the default."""
    numbers, dates = raw.of_role("number"), raw.of_role("date")
    values: dict[str, Any] = {}
    if parts := {column.name: column.part for column in raw.columns.values() if column.part}:
        values["category_part"] = parts
    formats = {name: raw.columns[name].facts.number_format for name in numbers}
    if formats := {name: written for name, written in formats.items() if written}:
        values["number_format"] = formats
    utc = {name: UTC_SUFFIX if raw.columns[name].facts.notations.reads_utc else "" for name in dates}
    days = {name: f"{raw.columns[name].facts.date_format}{utc[name]}" for name in dates}
    if days := {name: written for name, written in days.items() if written != ISO}:
        values["date_format"] = days
    if raw.written.null_values:
        values["null_values"] = list(raw.written.null_values)
    return values


def _text_steps(raw: RawTables, texts: Sequence[str]) -> dict[str, tuple[list[TextStep], str]]:
    """Return the steps of each text whose cells need others than the default, by setting, and the reason."""
    settings = {}
    fields = {"text_processing_steps": (texts, FULL_TEXT_STEPS)}
    if len(texts) == 2:
        fields = {
            "primary_text_processing_steps": (texts[:1], FULL_TEXT_STEPS),
            "secondary_text_processing_steps": (texts[1:], EVENT_TEXT_STEPS),
        }
    for setting, (columns, default) in fields.items():
        facts, reasons, steps = [raw.columns[name].facts for name in columns], [], list(default)
        if "html_normalizer" not in steps and any(each.has_html for each in facts):
            steps.insert(steps.index("text_normalizer"), "html_normalizer")
            reasons.append("the texts have HTML, which html_normalizer removes")
        if "emoji_remover" in steps and any(each.has_emoji for each in facts):
            steps.remove("emoji_remover")
            reasons.append("the texts have emoji, which stay; to remove them, add emoji_remover before text_normalizer")
        if reasons:
            settings[setting] = steps, "; ".join(reasons)
    return settings


def _length(raw: RawTables, texts: list[str]) -> tuple[int, str]:
    words = [float(np.quantile(raw.columns[name].facts.characters, 0.95)) / 5 for name in texts]
    read = max(words) if len(texts) == 2 else sum(words)  # two texts have an encoder each
    tokens = round(read * _TOKENS_PER_WORD) + 2
    length = next((length for length in LENGTHS if length >= tokens), LENGTHS[-1])
    return length, f"95 % of the texts have at most about {tokens} tokens; longer ones are read in chunks"
