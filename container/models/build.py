"""Build a classifier from hyperparameters and encoder files, or load a trained one from model/."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from container.models.backbone import build_encoder, build_word_embeddings, load_failure
from container.models.classifier import Classifier
from container.models.cross_attention import CrossAttentionTable, CrossAttentionTexts
from container.models.dropout import draw_faster
from container.models.encoder import TextBranch, TextEncoder
from container.models.ensemble import MEMBERS, Ensemble, Network
from container.models.experts import Experts
from container.models.fusion import Concat, ConcatMLP, FusionHead, Gate, NormalisedGates, States, TextOnly
from container.models.memory import build_if_it_fits
from container.models.tabular import CategoryEmbedding, NumericEmbedding, TabularBranch, TabularFields, scaled_edges
from container.models.word_encoders import ConvolutionalEncoder, RecurrentEncoder, WordEncoder
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.prepared import EncoderFiles
from container.text.weight_files import check_weight_file
from contracts.artifacts import HYPERPARAMETERS, MODEL_STATE, tokenizer_folder
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import read_object
from contracts.text_fields import ModelTextField

# By ModelClass.fusion.
FUSION_HEADS: dict[str, type[FusionHead]] = {
    "text_only": TextOnly,
    "states": States,
    "concat": Concat,
    "concat_mlp": ConcatMLP,
    "gate": Gate,
    "normalised_gates": NormalisedGates,
    "experts": Experts,
    "cross_attention_table": CrossAttentionTable,
    "cross_attention_texts": CrossAttentionTexts,
}


def build_classifier(
    hp: Hyperparameters,
    encoders: Sequence[EncoderFiles],
    *,
    tabular_dim: int,
    numeric_transform: NumericTransformParameters,
    num_codes: Sequence[int] = (),
) -> Classifier:
    """Build a classifier on the CPU in float32; its random weights depend only on hp.seed.

    Args:
        encoders: files of each text field's encoder, in the order of hp.text_fields.
        tabular_dim: number n of tabular inputs; 0 = texts only.
        numeric_transform: fitted on train; becomes buffers of the model.
        num_codes: number of codes of each embedded category; these are the last tabular inputs.

    Raises:
        ContractError: see build_encoder.
    """
    head = FUSION_HEADS[hp.architecture.fusion]
    projects, per_token = head.text_features != "mean", head.text_features == "tokens"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hp.seed)
        branches = {}
        encoder = None
        for field, files in zip(hp.text_fields, encoders, strict=True):
            if encoder is None or not hp.share_encoder:
                encoder = _encoder(hp, field, files, pooling=None if per_token else hp.pooling)
            projection = _projection(hp, encoder) if projects else nn.Identity()
            branches[field.role] = TextBranch(encoder, projection, per_token=per_token)
        tabular = None
        if hp.architecture.uses_table and tabular_dim:
            kind = {"vector": TabularBranch, "fields": TabularFields}[head.table_features]
            num_numbers = tabular_dim - len(num_codes)
            tabular = _tabular(hp, kind, num_numbers, numeric_transform=numeric_transform, num_codes=num_codes)
        widths = {branch.encoder.width for branch in branches.values()}
        fusion = build_if_it_fits(
            lambda: head(
                hp,
                text_width=hp.hidden_common_dim if projects else max(widths),
                num_texts=len(branches),
                table_width=0 if tabular is None else hp.hidden_common_dim,
            ),
            part="the fusion head",
            settings="hidden_common_dim, fusion_hidden_dim or num_experts",
        )
        classifier = Classifier(branches, tabular=tabular, fusion=fusion)
    draw_faster(classifier)
    return classifier


def _tabular(
    hp: Hyperparameters,
    kind: type[TabularBranch] | type[TabularFields],
    num_numbers: int,
    *,
    numeric_transform: NumericTransformParameters,
    num_codes: Sequence[int],
) -> TabularBranch | TabularFields:
    edges = None if hp.numeric_embedding == "none" else scaled_edges(numeric_transform)
    return build_if_it_fits(
        lambda: kind(
            num_numbers,
            hp.hidden_common_dim,
            transform=numeric_transform,
            dropout=hp.dropout,
            embedding=None if edges is None else NumericEmbedding(edges, width=hp.numeric_embedding_dim),
            categories=CategoryEmbedding(num_codes, hp.category_embedding_dim) if num_codes else None,
        ),
        part="the tabular branch",
        settings="numeric_embedding_dim, category_embedding_dim or hidden_common_dim",
    )


def load_classifier(model_dir: Path) -> Network:
    """Load the trained classifier of a model/ folder, or its ensemble of classifiers, on the CPU in evaluation mode.

    Raises:
        ContractError: a file is missing or damaged, or does not belong to the others.
    """
    path = model_dir / HYPERPARAMETERS
    content = read_object(path, "Give the model/ folder of a training job, complete.")
    hp = parse_hyperparameters(content, dict.fromkeys(content, path))
    fitted = FittedPreprocessing.load(model_dir)
    encoders = [EncoderFiles(model_dir / tokenizer_folder(field.role)) for field in hp.text_fields]
    state = _read_state(model_dir / MODEL_STATE)
    networks = [
        build_classifier(
            hp,
            encoders,
            tabular_dim=len(fitted.feature_columns),
            numeric_transform=fitted.numeric_transform,
            num_codes=fitted.num_codes,
        )
        for _ in range(max(1, _num_members(state)))
    ]
    model = Ensemble(networks) if _num_members(state) else networks[0]
    _load_state(model, state, path=model_dir / MODEL_STATE)
    return model.eval()


def _num_members(state: Mapping[str, torch.Tensor]) -> int:
    """Return the number of members of the ensemble with this state; 0 for one classifier."""
    names = state if isinstance(state, Mapping) else ()  # a file may contain anything
    return len({name.split(".")[1] for name in map(str, names) if name.startswith(f"{MEMBERS}.")})


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    check_weight_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ContractError(
            f"{path}: cannot be read as a state dict of tensors: {load_failure(error)}",
            "Give the model.pth that a training job wrote, unchanged.",
        ) from None


def _load_state(model: nn.Module, state: Mapping[str, torch.Tensor], *, path: Path) -> None:
    """Load the plain state dict of the file `path` into `model`; every name and shape must match."""
    try:
        model.load_state_dict(state, strict=True)
    except (RuntimeError, TypeError) as error:
        raise ContractError(
            f"{path}: does not match hyperparameters.json and preprocessing.json in the same folder: "
            f"{' '.join(str(error).split())[:300]}",
            "Keep the files of one training job together.",
        ) from error


def _encoder(
    hp: Hyperparameters, field: ModelTextField, files: EncoderFiles, *, pooling: str | None
) -> TextEncoder | WordEncoder:
    if hp.share_encoder:
        field = replace(field, max_sen_len=max(other.max_sen_len for other in hp.text_fields))
    if hp.architecture.encoder == "transformer":
        return build_encoder(field, files, chosen=hp.model_fields_set, pooling=pooling)
    words = build_word_embeddings(field, files)
    if hp.architecture.encoder == "lstm":
        sizes = {"width": hp.hidden_common_dim, "num_layers": hp.num_layers, "dropout": 1 - hp.dropout_keep}
        return build_if_it_fits(
            lambda: RecurrentEncoder(words, **sizes), part="the encoder", settings="hidden_common_dim or num_layers"
        )
    return build_if_it_fits(
        lambda: ConvolutionalEncoder(words, kernel_sizes=hp.kernel_size, channels=hp.num_channels),
        part="the encoder",
        settings="num_channels or kernel_size",
    )


def _projection(hp: Hyperparameters, encoder: TextEncoder | WordEncoder) -> nn.Module:
    dropout = 1 - hp.dropout_keep if hp.architecture.encoder == "cnn" else hp.dropout
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(encoder.width, hp.hidden_common_dim))
