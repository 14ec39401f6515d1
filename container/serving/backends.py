"""Compute prepared records with ONNX Runtime, OpenVINO or PyTorch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from container.cores import available_cores
from container.data.records import RecordArrays, onnx_inputs
from container.decision.decision import Decision
from container.onnx_session import open_session
from container.openvino_session import OpenvinoSession
from contracts import artifacts
from contracts.errors import ContractError
from contracts.text_fields import Role, TextInputs

logger = logging.getLogger(__name__)

_FILLED = 32  # tokens: OpenVINO keeps about 1 MB for each shape of its inputs (benchmarks/log.md)
GRAPH_BACKENDS: dict[str, Callable[..., Any]] = {"onnx": open_session, "openvino": OpenvinoSession}


class Backend(Protocol):
    """Compute prepared records."""

    def probabilities(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        """Return the class probabilities of record indices[i] of records[i], i = 0..B-1. [B, K]"""
        ...


class OnnxBackend:
    """Run model.onnx, or a variant of it.

    Args:
        open_graph: opens a file in ONNX Runtime, or in what has the same methods.
        longest: most tokens of a chunk of each text, up to which chunks are filled to few lengths; empty: they are not.
    """

    def __init__(
        self,
        folder: Path,
        texts: Mapping[Role, TextInputs],
        *,
        variant: str | None,
        threads: int | None,
        open_graph: Callable[..., Any] = open_session,
        longest: Sequence[int] = (),
    ) -> None:
        path = folder / artifacts.onnx_file(variant)
        if not path.is_file():
            raise ContractError(
                f"{path}: is missing",
                "Point model_dir at the model/ folder of a completed job."
                if variant is None
                else f"Train with onnx_variants [{variant!r}]; the log gives the reason if the variant was not kept.",
            )
        self._open_graph, self._longest = open_graph, longest
        self._threads = available_cores() if threads is None else _at_most_cores(threads)
        self._session = self._load(path)
        # Loaded now: later, the folder may contain another model.
        self._head_file = folder / artifacts.head_file(variant)
        self._head = self._load(self._head_file) if self._head_file.is_file() else None
        self._head_inputs = {node.name for node in self._head.get_inputs()} if self._head else set()
        self._roles, self._texts = list(texts), list(texts.values())
        self._inputs = {node.name for node in self._session.get_inputs()}
        named = [name for text in self._texts for name in (text.input_ids_key, text.attention_mask_key)]
        if missing := sorted(self._inputs - {*named, artifacts.ONNX_TABULAR}):
            raise ContractError(
                f"{folder / artifacts.HYPERPARAMETERS}: names the text inputs {', '.join(named)}, but {path.name} has "
                f"the inputs {', '.join(missing)}",
                artifacts.MODEL_FIX,
            )

    def probabilities(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        inputs = self._inputs_of(records, indices)
        feed = {name: value for name, value in inputs.items() if name in self._inputs}
        return np.asarray(self._session.run([artifacts.ONNX_OUTPUT], feed)[0])

    def features(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> list[list[dict[str, np.ndarray]]]:
        """Return the features of each text of record indices[i] of records[i] by name, as HeadInputs takes them. [B]"""
        inputs = self._inputs_of(records, indices)
        names = sorted(name for name in self._head_inputs if name.startswith(artifacts.ONNX_FEATURES))
        outputs = self._session.run(names, {name: value for name, value in inputs.items() if name in self._inputs})
        by_text: list[dict[str, np.ndarray]] = []
        for text, role in zip(self._texts, self._roles, strict=True):
            mask = inputs[text.attention_mask_key]  # [B, C, T]
            arrays = {name: np.asarray(array) for name, array in zip(names, outputs) if name.split(".")[1] == role}
            arrays = {name: a.reshape(*mask.shape, -1) if a.ndim == 3 else a for name, a in arrays.items()}
            read = self._head_inputs.intersection((text.input_ids_key, text.attention_mask_key))
            by_text.append(arrays | {name: inputs[name] for name in read})
        return [[{name: array[i] for name, array in arrays.items()} for arrays in by_text] for i in range(len(indices))]

    def scores(self, feed: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the scores, whose softmax are the probabilities, from features and table. [B, K]"""
        assert self._head is not None, "check_head"
        inputs = {name: value for name, value in feed.items() if name in self._head_inputs}
        return np.asarray(self._head.run([artifacts.ONNX_SCORES], inputs)[0])

    def check_head(self) -> None:
        """Raise ContractError if the model has no head beside the graph."""
        if self._head is None:
            raise ContractError(
                f"{self._head_file}: is missing: the model was exported by a version without reasons for predictions",
                "Export it again: run the training job again in its folder, which trains no further step.",
            )

    def _inputs_of(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> dict[str, np.ndarray]:
        inputs = onnx_inputs(self._texts, RecordArrays.gathered(records, indices))
        for text, most in zip(self._texts, self._longest):
            for name in (text.input_ids_key, text.attention_mask_key):
                length = inputs[name].shape[2]
                added = min(-length % _FILLED, most - length)
                inputs[name] = np.pad(inputs[name], ((0, 0), (0, 0), (0, added)))
        return inputs

    def _load(self, path: Path) -> Any:
        try:
            return self._open_graph(path, threads=self._threads)
        except ContractError:
            raise
        except Exception as error:  # onnxruntime's exceptions derive from Exception only
            raise ContractError(f"{path}: cannot be loaded: {error}", "Copy the model folder again.") from error


def _at_most_cores(threads: int) -> int:
    """Return `threads`, but at most the number of cores: many more take all memory while the model is loaded."""
    cores = available_cores()
    if threads > cores:
        text = "threads (SERVING_THREADS) is %d, but this machine has %d cores: the model uses %d"
        logger.warning(text, threads, cores, cores)
    return min(int(threads), cores)


class TorchBackend:
    """Run model.pth in PyTorch, packed as in training."""

    def __init__(self, folder: Path, texts: Sequence[TextInputs], decision: Decision) -> None:
        from container.companion.blend import BlendedCompanion
        from container.models.build import load_classifier

        self._model = load_classifier(folder)
        self._companion = BlendedCompanion.load(folder)
        self._texts = texts
        self._decision = decision

    def probabilities(self, records: Sequence[RecordArrays], indices: Sequence[int]) -> np.ndarray:
        import torch

        from container.data.split import pack_records

        gathered = RecordArrays.gathered(records, indices)
        with torch.inference_mode():
            logits = self._model(pack_records(gathered)).numpy()  # [B, K]
        if self._companion is not None:
            logits = self._companion(logits, onnx_inputs(self._texts, gathered))
        return self._decision.probabilities(logits)
