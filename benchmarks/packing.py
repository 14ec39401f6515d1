"""Compare training speed on the CPU with packed and with padded chunks.

All modes take the same optimizer steps (forward, backward, clipping, AdamW; no dropout) on the same batches from the
same initial weights. Each runs in a separate process, which gives its peak memory. They alternate after each step, so
that machine load affects all equally. The padded modes use the unchanged Hugging Face model with a mask.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import ONE_TEXT, TWO_TEXTS, lay_out_job, read_reviews, require_minilm
from container.data.batch import PackedBatch, PackedText
from container.data.sampler import epoch_order
from container.data.split import PreparedSplit
from container.models.build import build_classifier
from container.models.encoder import TextEncoder
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh
from container.parallel.parallelize import parallelize
from container.preprocessing.class_weights import resolve_class_weights
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import EncoderFiles, open_prepared
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer
from contracts.hyperparameter_files import parse_hyperparameters

LARGEST_LOSS_DIFFERENCE = 1e-3  # relative; a different order of rounding stays well below it
FEWEST_ROWS = 256
NO_DROPOUT: dict[str, Any] = {
    "encoder_config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "dropout": 0.0,
}


@dataclass(frozen=True)
class Mode:
    """The layout of chunks: packed, or padded to `length` tokens (None: to the longest chunk of the batch).

    `attention` is the Hugging Face implementation of the padded modes. The default of transformers is sdpa; in older
    releases it was eager.
    """

    name: str
    padded: bool = False
    length: int | None = None
    attention: str = "sdpa"


@dataclass(frozen=True)
class Case:
    """A training run to measure; `prepared` is the folder of its prepared data."""

    title: str
    configuration: dict[str, Any]
    batch_size: int
    prepared: Path


@dataclass
class Figures:
    """The results of a mode; the first step counts only for the losses."""

    losses: list[float]
    seconds: list[float]
    peak_bytes: int = 0
    computed_tokens: int = 0
    tokens: int = 0


class PaddedEncoder(nn.Module):
    """Replaces TextEncoder by the unchanged Hugging Face model, with chunks padded on the right.

    Args:
        encoder: the source of the weights.
        mode: a padded mode.
    """

    packed = False  # as TextEncoder says of families that need padding

    def __init__(self, encoder: TextEncoder, files: EncoderFiles, *, mode: Mode) -> None:
        super().__init__()
        config = AutoConfig.from_pretrained(files.config_folder, local_files_only=True)
        self.model = AutoModel.from_config(config, attn_implementation=mode.attention, dtype=torch.float32)
        weights = encoder.backbone.state_dict()
        weights.update({f"pooler.{name}": weight for name, weight in encoder.pooler.state_dict().items()})
        self.model.load_state_dict(weights)
        self.length = mode.length
        self.pad_token_id = encoder.pad_token_id
        self.computed_tokens = 0

    def forward(self, text: PackedText) -> Tensor:
        """Return the vector of each chunk. [S, d]"""
        chunks = list(text.tokens.split(text.lengths))
        input_ids = pad_sequence(chunks, batch_first=True, padding_value=self.pad_token_id)  # [S, longest]
        if self.length is not None:
            input_ids = F.pad(input_ids, (0, self.length - input_ids.shape[1]), value=self.pad_token_id)  # [S, T]
        mask = (torch.arange(input_ids.shape[1]) < text.cu_seqlens.diff()[:, None]).long()  # [S, T]
        self.computed_tokens += input_ids.numel()
        return self.model(input_ids=input_ids, attention_mask=mask).pooler_output


def main() -> int:
    arguments = _arguments()
    encoder = require_minilm()
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    print_machine()
    length = arguments.pad_to
    modes = (
        Mode("packed"),
        Mode("padded to the longest", padded=True),
        Mode(f"padded to {length}", padded=True, length=length),
        Mode(f"padded to {length}, eager", padded=True, length=length, attention="eager"),
    )
    equal = True
    with tempfile.TemporaryDirectory() as folder:
        for name, columns, batch_size in (("one", ONE_TEXT, 32), ("two", TWO_TEXTS, 8)):
            if arguments.texts in (name, "both"):
                case = _prepare(Path(folder) / name, columns, encoder, arguments=arguments, batch_size=batch_size)
                figures = _measure(case, modes, steps=arguments.steps)
                equal &= _print(case, figures)
    return 0 if equal else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", choices=("one", "two", "both"), default="both")
    parser.add_argument("--steps", type=int, default=4, help="measured steps, after one warm-up step")
    parser.add_argument("--batch-size", type=int, help="default: 32 with one text, 8 with two")
    parser.add_argument("--pad-to", type=int, default=512, help="tokens per chunk of the modes with fixed padding")
    parser.add_argument("--generated", action="store_true", help="use generated reviews even if the real ones exist")
    return parser.parse_args()


def _prepare(
    root: Path, columns: dict[str, Any], encoder: Path, *, arguments: argparse.Namespace, batch_size: int
) -> Case:
    """Lay out and prepare only the rows that the steps need."""
    batch_size = arguments.batch_size or batch_size
    rows = max(FEWEST_ROWS, batch_size * (arguments.steps + 1))
    tables, source = read_reviews(generated=arguments.generated, generated_rows=rows)
    configuration = {
        **columns,
        **NO_DROPOUT,
        **({"fusion_dropout": 0.0} if "primary_text_name" in columns else {}),
        "tokenizer": str(encoder),
        "max_sen_len": arguments.pad_to,
        "reinit_layers": 0,
        "batch_size": batch_size,
        "preprocess_workers": 1,
    }
    reduced = {split: table.slice(0, rows if split == "train" else FEWEST_ROWS) for split, table in tables.items()}
    prepared = prepare_data(lay_out_job(root, reduced, configuration), parse_hyperparameters(configuration))
    texts = [columns[name] for name in ("text_name", "primary_text_name", "secondary_text_name") if name in columns]
    title = f"{' + '.join(texts)} of {source}, MiniLM, batch {batch_size}, {arguments.steps} steps"
    return Case(title, configuration, batch_size, prepared.folder)


def _measure(case: Case, modes: tuple[Mode, ...], *, steps: int) -> dict[str, Figures]:
    """Take each step in every mode; the first step, which allocates memory, does not count for speed."""
    spawn = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    processes = []
    for mode in modes:
        connections[mode.name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=_worker, args=(case, mode, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
    figures = {mode.name: Figures([], []) for mode in modes}
    for connection in connections.values():
        connection.recv()  # the measurement starts after all workers have loaded their weights
    for step in range(steps + 1):
        for name, connection in connections.items():
            connection.send(step)
            loss, seconds = connection.recv()
            figures[name].losses.append(loss)
            if step:
                figures[name].seconds.append(seconds)
    for name, connection in connections.items():
        connection.send(None)
        figures[name].peak_bytes, figures[name].computed_tokens, figures[name].tokens = connection.recv()
    for process in processes:
        process.join()
    return figures


def _worker(case: Case, mode: Mode, connection: Connection) -> None:
    """Train in one mode: receive step numbers, send (loss, seconds), and at the end memory and tokens."""
    hp = parse_hyperparameters(case.configuration)
    data = open_prepared(case.prepared)
    split = PreparedSplit(data.split("train"), roles=[field.role for field in hp.text_fields])
    order = epoch_order(len(split), seed=hp.seed, epoch=0)
    files = [data.encoders[field.role] for field in hp.text_fields]
    classifier = build_classifier(
        hp, files, tabular_dim=data.tabular_dim, numeric_transform=data.fitted.numeric_transform
    )
    padded = []
    if mode.padded:
        for branch, encoder_files in zip(classifier.branches.values(), files, strict=True):
            branch.encoder = PaddedEncoder(branch.encoder, encoder_files, mode=mode)
            padded.append(branch.encoder)
    alone = RankMesh(torch.device("cpu"), None, ParallelDegrees.resolve(hp, 1), rank=0, world_size=1, coordinates={})
    execution = parallelize(classifier.train(), alone, hp, precision=torch.float32)
    objective = WeightedCrossEntropy(resolve_class_weights(hp, data.fitted.class_labels, data.summary), alone.device)
    optimizer = build_optimizer(hp, classifier)

    def train_step(batch: PackedBatch) -> float:
        optimizer.zero_grad(set_to_none=True)
        normaliser = objective.record_weights(batch).sum()
        loss = execution.forward_backward(
            [batch], objective=objective, normaliser=normaliser, scale_loss=lambda loss: loss
        )
        step_optimizer(optimizer, execution.gradient_norm(hp.gradient_clip_val))
        return loss.item()

    connection.send("ready")
    tokens = 0
    while (step := connection.recv()) is not None:
        start = time.perf_counter()
        batch = split.pack(order[step * case.batch_size : (step + 1) * case.batch_size])
        loss = train_step(batch)
        connection.send((loss, time.perf_counter() - start))
        tokens += batch.num_tokens
    computed = sum(encoder.computed_tokens for encoder in padded) if padded else tokens
    connection.send((_peak_bytes(), computed, tokens))


def _peak_bytes() -> int:
    """Return the peak resident memory; ru_maxrss would include memory from before this program started."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _print(case: Case, figures: dict[str, Figures]) -> bool:
    """Print the table; return whether all modes computed the same losses."""
    packed = figures["packed"]
    rows = []
    for name, mode in figures.items():
        seconds = sum(mode.seconds)
        rows.append(
            [
                name,
                f"{case.batch_size * len(mode.seconds) / seconds:.2f}",
                f"{seconds / sum(packed.seconds):.2f}x",
                f"{100 * (1 - mode.tokens / mode.computed_tokens):.0f} %",
                f"{mode.peak_bytes / 2**30:.2f} GiB",
                f"{mode.losses[-1]:.6f}",
            ]
        )
    print_table(case.title, ["mode", "records/s", "time of packed", "padding", "peak memory", "last loss"], rows)
    differences = [
        abs(loss - expected) / abs(expected)
        for mode in figures.values()
        for loss, expected in zip(mode.losses, packed.losses)
    ]
    equal = max(differences) < LARGEST_LOSS_DIFFERENCE
    print(
        f"Losses of all modes {'are equal' if equal else 'DIFFER'}: over {len(packed.losses)} steps "
        f"the largest relative difference is {max(differences):.1e}."
    )
    return equal


if __name__ == "__main__":
    sys.exit(main())
