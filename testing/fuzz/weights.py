"""Kind weights: a pretrained encoder in every form of its files, whole, damaged or replaced by something else."""

import json
import pickle
import shutil
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel

from container.job.failure import Failure
from container.models.backbone import build_encoder
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from testing.encoder_families import Files
from testing.fuzz import oracle
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome
from testing.fuzz.run_product import ended_training
from testing.jobs import TINY_ENCODER, write_job, write_letters_tokenizer

_STAND_INS = (
    b"", b" ", b"\0" * 100, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    b"<!DOCTYPE html><html></html>", b"<?xml version='1.0'?><Error/>", b'{"error": "Unauthorized"}', b"\x1f\x8b\x08\0",
    b"PK\x03\x04", b"\x89PNG\r\n", b"\xff" * 9, b"{}", b"[" * 9_000, pickle.dumps({"weight": [1.0]}),
)  # fmt: skip
_TOLD_BY_HEADERS = ("cut", "stand-in", "lost", "object")  # of which the preflight must find every one


def run(case: Case) -> Outcome:
    """Write an encoder, damage it, run the job until its workers would start, and load the encoder as they do."""
    rng, recipe = case.rng, case.recipe
    paths = write_job(case.folder / "job", overrides={"tokenizer": "tiny", "encoder_config": None, "max_sen_len": 24})
    folder = paths.pretrained / "tiny"
    write_letters_tokenizer(folder)
    config = {"model_type": "bert", **TINY_ENCODER, "max_position_embeddings": 24}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(rng.randrange(99))
    state = AutoModel.from_config(AutoConfig.from_pretrained(folder)).state_dict()
    way = rng.choice(("none", "values", "shape", "layers", "flip", *2 * _TOLD_BY_HEADERS))
    recipe.append(way)
    _change_state(state, way, rng, recipe)
    files = _write(folder, state, rng, recipe)
    _damage(rng.choice(files), way, rng, recipe)
    if way == "layers":
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": rng.choice((1, 3))}))
    code, reached = ended_training(case, paths, whole=False)
    if not reached:
        problems = oracle.refused_job_problems(paths) if code == 1 else [f"exit code {code}"]
        return Outcome(REFUSED, problems + ([f"{way} is refused"] if way in ("none", "layers") else []), recipe)
    try:
        encoder = build_encoder(load_hyperparameters(paths).text_fields[0], Files(folder, folder))
    except ContractError as error:
        text = Failure.from_exception(error).text()
        problems = oracle.message_problems(text) + (
            ["the message advises weights_only"] if "weights_only" in text else []
        )
        return Outcome(
            REFUSED, problems + ([f"{way}: found only at loading"] if way in _TOLD_BY_HEADERS else []), recipe
        )
    finite = all(weight.isfinite().all() for weight in encoder.parameters())
    return Outcome(ACCEPTED, [] if finite else ["the encoder has weights that are no numbers"], recipe)


def _change_state(state: dict[str, Tensor], way: str, rng: Random, recipe: list[str]) -> None:
    """Change a tensor before it is written."""
    name = rng.choice([name for name, tensor in state.items() if tensor.is_floating_point()])
    if way == "values":
        state[name] = state[name].clone()
        state[name].flatten()[rng.randrange(state[name].numel())] = rng.choice((float("nan"), float("inf"), 1e30))
    elif way == "shape":
        state[name] = rng.choice(
            (state[name][:-1].clone(), state[name][None].clone(), torch.zeros(0), torch.tensor(1.0))
        )
    else:
        return
    recipe.append(name)


def _write(folder: Path, state: dict[str, Tensor], rng: Random, recipe: list[str]) -> list[Path]:
    """Write the weights in one of their forms; return the files that hold them."""
    suffix = rng.choice(("safetensors", "bin"))
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    shards = rng.choice((1, 1, 2, 3))
    recipe.append(f"{shards} x {suffix}")
    names = [f"{stem}{f'-{place}-of-{shards}' if shards > 1 else ''}.{suffix}" for place in range(shards)]
    for place, name in enumerate(names):
        part = dict(list(state.items())[place::shards])
        if suffix == "safetensors":
            save_file(part, folder / name)
        else:
            torch.save(part, folder / name)
    if shards > 1:
        placed = {name: names[place % shards] for place, name in enumerate(state)}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return [folder / name for name in names]


def _damage(path: Path, way: str, rng: Random, recipe: list[str]) -> None:
    """Damage a file after it was written."""
    content = path.read_bytes()
    if way == "cut":
        content = content[: rng.choice((rng.randrange(len(content)), len(content) - 1, rng.randrange(200)))]
    elif way == "stand-in":
        content = rng.choice(_STAND_INS)
    elif way == "flip":
        place = rng.choice((rng.randrange(len(content)), rng.randrange(200)))
        content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    elif way == "lost":
        path.unlink()
        if rng.random() < 0.3:
            path.mkdir()
        return
    elif way == "object":
        made = rng.choice(
            (torch.nn.Linear(2, 2), [1], {"model": {"weight": torch.zeros(1)}}, shutil.copyfile, {}, None)
        )
        if path.suffix == ".safetensors":
            path.write_bytes(pickle.dumps(made))
        else:
            torch.save(made, path, _use_new_zipfile_serialization=rng.random() < 0.5)
        return
    path.write_bytes(content)
    recipe.append(f"{path.name}: {content[:30]!r}, {len(content)} bytes")
