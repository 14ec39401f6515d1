"""What a training takes over from an earlier model: each weight by its meaning."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from container.decision.decision import Decision
from container.export.artifacts import plain_state
from container.models.build import build_classifier, load_classifier
from container.models.carry_over import carry_over
from container.models.classifier import Classifier
from container.models.ensemble import Ensemble
from container.preprocessing.prepared import EncoderFiles
from container.preprocessing.transform import Preprocessor
from contracts import artifacts
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import MODEL_CLASSES
from testing.exported_models import ENCODER, preprocessed_model

TEXTS: dict[str, Any] = {"text_name": None, "primary_text_name": "text", "secondary_text_name": "other"}


def built(folder: Path, hp: Hyperparameters, preprocessor: Preprocessor, *, seed: int) -> Classifier:
    fitted = preprocessor.fitted
    return build_classifier(
        hp.model_copy(update={"seed": seed}),
        [EncoderFiles(folder / ENCODER)] * len(hp.text_fields),
        tabular_dim=len(fitted.feature_columns),
        numeric_transform=fitted.numeric_transform,
        num_codes=fitted.num_codes,
    )


def earlier(folder: Path, **given: Any) -> tuple[Path, Classifier, Preprocessor, Hyperparameters]:
    """Write a model folder, and return it with a model of other random weights for the same settings."""
    preprocessor, hp = preprocessed_model(folder, Decision(), **given)
    torch.save(plain_state(built(folder, hp, preprocessor, seed=1)), folder / "model" / artifacts.MODEL_STATE)
    return folder / "model", built(folder, hp, preprocessor, seed=2), preprocessor, hp


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_with_the_same_settings_every_weight_carries_over(tmp_path: Path, name: str) -> None:
    texts: dict[str, Any] = {0: {"text_name": None}, 1: {}, 2: TEXTS}[MODEL_CLASSES[name].num_texts]
    options = (
        {"numeric_embedding": "piecewise_linear", "category_embedding_dim": 3} if MODEL_CLASSES[name].uses_table else {}
    )
    folder, model, preprocessor, _ = earlier(tmp_path, model_class=name, **texts, **options)
    carry_over(model, preprocessor.fitted, folder, initial=folder)
    old = dict(load_classifier(folder).named_parameters())
    for weight_name, weight in model.named_parameters():
        assert torch.equal(weight, old[weight_name]), weight_name


def test_columns_carry_over_by_name_and_a_new_one_starts_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder, *_ = earlier(tmp_path / "old", tab_field_list=["x", "y"])
    _, model, preprocessor, _ = earlier(tmp_path / "new", tab_field_list=["y", "x"], cat_field_list=[])
    before = model.tabular.linear.weight.clone()
    carry_over(model, preprocessor.fitted, tmp_path / "new" / "model", initial=folder)
    old = load_classifier(folder)
    names = list(preprocessor.fitted.feature_columns)
    places = {"x": 0, "y": 1}
    for name in ("x", "y"):
        assert torch.equal(
            model.tabular.linear.weight[:, names.index(name)], old.tabular.linear.weight[:, places[name]]
        )
    assert before.shape == model.tabular.linear.weight.shape
    assert "carry over" in caplog.text


def test_of_an_ensemble_the_first_network_carries_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder, model, preprocessor, hp = earlier(tmp_path)
    first, second = (built(tmp_path, hp, preprocessor, seed=seed) for seed in (3, 4))
    torch.save(plain_state(Ensemble([first, second])), folder / artifacts.MODEL_STATE)
    carry_over(model, preprocessor.fitted, folder, initial=folder)
    assert torch.equal(model.fusion.output.weight, first.fusion.output.weight)
    assert "its first network of 2 is the start" in caplog.text


def test_outputs_carry_over_by_label(tmp_path: Path) -> None:
    folder, model, preprocessor, _ = earlier(tmp_path)
    fitted = replace(preprocessor.fitted, class_labels=preprocessor.fitted.class_labels[::-1])
    carry_over(model, fitted, folder, initial=folder)
    old = load_classifier(folder)
    assert torch.equal(model.fusion.output.weight, old.fusion.output.weight.flip(0))


def test_token_vectors_carry_over_by_token(tmp_path: Path) -> None:
    folder, model, preprocessor, _ = earlier(tmp_path)
    tokenizer = tmp_path / "tokenizers" / "tokenizer"
    tokenizer.mkdir(parents=True)
    content = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    tokens = {place: token for token, place in vocabulary.items()}
    vocabulary[tokens[4]], vocabulary[tokens[5]] = 5, 4
    (tokenizer / "tokenizer.json").write_text(json.dumps(content))
    carry_over(model, preprocessor.fitted, tmp_path / "tokenizers", initial=folder)
    old = load_classifier(folder).branches["text"].encoder.backbone.get_input_embeddings().weight
    new = model.branches["text"].encoder.backbone.get_input_embeddings().weight
    assert torch.equal(new[4], old[5])
    assert torch.equal(new[5], old[4])
    assert torch.equal(new[6:], old[6:])
