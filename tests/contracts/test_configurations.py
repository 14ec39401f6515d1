"""The ready configurations: each loads, contradicts nothing, and shares the work out as its name says."""

import json
import shutil

import pytest

from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape, check_against_model
from contracts.hyperparameter_files import load_hyperparameters
from contracts.model_classes import MODEL_CLASSES
from contracts.paths import JobPaths
from contracts.unused_settings import unused_settings
from testing.jobs import REPOSITORY

FOLDER = REPOSITORY / "hyperparams"
# File -> (processes of the job, axes of the mesh); None = any number of processes.
PARALLEL_SIZES = {
    "reviews_minilm": (None, {"dp_replicate": 8}),
    "reviews_from_scratch": (None, {"dp_replicate": 8}),
    **{name: (None, {"dp_replicate": 8}) for name in MODEL_CLASSES if name != "trimodal_bert"},
    "trimodal_base": (None, {"dp_replicate": 8}),
    "trimodal_large": (None, {"dp_shard": 8}),
    "hybrid_pp_dp_8gpu": (8, {"pp": 2, "dp_replicate": 4}),
    "hybrid_fsdp_pp_8gpu": (8, {"pp": 2, "dp_shard": 4}),
    "hybrid_pp_dp_16gpu": (16, {"pp": 2, "dp_replicate": 8}),
    "hybrid_fsdp_pp_16gpu": (16, {"pp": 4, "dp_shard": 4}),
    "hybrid_3d_16gpu": (16, {"pp": 4, "dp_replicate": 2, "tp": 2}),
}
BASE = {"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"model_type": "bert", "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ENCODERS = {
    "bert-base-cased": BASE,
    "bert-large-cased": LARGE,
    "roberta-large": {**LARGE, "model_type": "roberta"},
    "from_scratch": BASE,
}


@pytest.fixture
def load(tmp_path):
    """Hyperparameters of a ready configuration, read as a job reads them."""

    def from_file(name):
        paths = JobPaths(tmp_path)
        target = tmp_path / "code" / "hyperparams" / "hyperparameters.json"
        assert target in paths.hyperparameter_files
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FOLDER / f"{name}.json", target)
        return load_hyperparameters(paths)

    return from_file


def test_every_configuration_is_in_the_table_and_in_the_readme():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files == set(PARALLEL_SIZES)
    rows = (FOLDER / "README.md").read_text().splitlines()
    assert {row.split("|")[1].strip() for row in rows if row.startswith("|")} - {"file", "--"} == files


@pytest.mark.parametrize("name", PARALLEL_SIZES)
def test_its_parallel_sizes_are_those_documented(load, name):
    hp = load(name)
    world_size, axes = PARALLEL_SIZES[name]
    degrees = ParallelDegrees.resolve(hp, world_size or 8)
    assert degrees.axes == axes
    assert unused_settings(hp, degrees.features(hp)) == []
    assert hp.nproc_per_node == (8 if world_size == 8 else None)
    assert world_size or ParallelDegrees.resolve(hp, 1).product == 1


@pytest.mark.parametrize("name", [name for name in PARALLEL_SIZES if name != "reviews_minilm"])
def test_its_encoders_can_be_shared_out_so(load, name):
    hp = load(name)
    encoders = [EncoderShape(field.role, field.tokenizer, ENCODERS[field.tokenizer]) for field in hp.text_fields]
    check_against_model(ParallelDegrees.resolve(hp, PARALLEL_SIZES[name][0] or 8), hp, encoders)


@pytest.mark.parametrize("name", PARALLEL_SIZES)
def test_it_says_in_a_comment_what_it_is_for(name):
    assert json.loads((FOLDER / f"{name}.json").read_text())["_comments"]
