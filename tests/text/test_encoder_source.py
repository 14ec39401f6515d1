"""Finding an encoder, copying its files, learning a vocabulary and overriding a config."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from container.text import encoder_source
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.encoder_config import SHAPE_KEYS, check_positions, read_config, run_transformers, with_overrides
from container.text.encoder_source import encoder_files, find_encoder, write_encoder_files
from container.text.vocabulary import learn_vocabulary
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.foreign_files import add_foreign_files
from testing.jobs import NO_WEIGHTS, run_python

TEXTS = [f"The dress number {n} fits well, and I LOVE its café-style sleeves {n % 7}!" for n in range(300)]


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    return JobPaths(tmp_path)


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    learn_vocabulary(TEXTS, folder, encoder_config={"vocab_size": 200}, seed=1)
    return folder


def make_encoder(folder: Path, learned: Path, *, weights: bool = True) -> Path:
    shutil.copytree(learned, folder)
    if weights:
        (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
    return folder


def test_from_scratch_has_no_folder(paths: JobPaths) -> None:
    assert find_encoder("from_scratch", paths) is None


def test_a_local_folder_is_found_by_its_path(paths: JobPaths, learned: Path) -> None:
    folder = make_encoder(paths.root / "mine", learned)
    assert find_encoder(str(folder), paths) == folder


@pytest.mark.parametrize(("name", "folder"), [("mini", "mini"), ("org/mini", "org/mini"), ("org/mini", "mini")])
def test_an_encoder_is_found_in_the_pretrained_channel(paths: JobPaths, learned: Path, name: str, folder: str) -> None:
    make_encoder(paths.pretrained / folder, learned)
    assert find_encoder(name, paths) == paths.pretrained / folder


@pytest.mark.parametrize("name", ["pretrained", "bert-base-cased"])
def test_a_channel_that_is_one_encoder_is_that_encoder(paths: JobPaths, learned: Path, name: str) -> None:
    make_encoder(paths.pretrained, learned)
    assert find_encoder(name, paths) == paths.pretrained


@pytest.mark.parametrize("archive", ["model.tar.gz", "bert.zip"])
def test_an_archive_in_the_pretrained_channel_is_named(paths: JobPaths, archive: str) -> None:
    paths.pretrained.mkdir(parents=True)
    (paths.pretrained / archive).touch()
    with pytest.raises(ContractError, match=f"'bert' is no folder of .*pretrained, which has the archive {archive}"):
        find_encoder("bert", paths)


def test_files_of_an_encoder_may_begin_with_a_byte_order_mark(paths: JobPaths, learned: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig

    folder = make_encoder(paths.pretrained / "bert", learned)
    for path in folder.glob("*.json"):
        path.write_text(path.read_text("utf-8"), "utf-8-sig")
    write_encoder_files(find_encoder("bert", paths), tmp_path / "copied")
    assert read_config(folder) == read_config(learned)
    loaded = [AutoConfig.from_pretrained(each).to_diff_dict() for each in (tmp_path / "copied", learned)]
    assert loaded[0] == loaded[1]
    assert isinstance(Tokenizer.from_file(str(tmp_path / "copied" / "tokenizer.json")), Tokenizer), "it is read"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_an_error_naming_it(paths: JobPaths, learned: Path, missing: str) -> None:
    folder = make_encoder(paths.pretrained / "mini", learned)
    (folder / missing).unlink()
    with pytest.raises(ContractError, match=missing) as raised:
        find_encoder("mini", paths)
    assert str(folder) in raised.value.cause


def test_a_lost_shard_of_the_weights_is_named(paths: JobPaths, learned: Path) -> None:
    folder = make_encoder(paths.pretrained / "mini", learned, weights=False)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(ContractError, match="model-00002-of-00002"):
        find_encoder("mini", paths)


RESOLVE = """
import sys
from contracts.paths import JobPaths
from container.text.encoder_source import find_encoder
from contracts.errors import ContractError
try:
    print(find_encoder(sys.argv[1], JobPaths.resolve()))
except ContractError as error:
    print(error)
"""


def resolved(name: str, paths: JobPaths, **environment: str) -> str:
    """What find_encoder returns or raises in a process of its own."""
    folders = {"ML_ROOT": str(paths.root), "HF_HOME": str(paths.root / "hf")}
    return run_python(RESOLVE, name, **folders, **environment).stdout


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_an_encoder_out_of_reach_is_an_error_that_says_what_would_work(paths, learned, environment):
    make_encoder(paths.pretrained / "org" / "mini", learned)
    said = resolved("org/absent", paths, **environment)
    assert "tokenizer: the encoder 'org/absent' was not found" in said.splitlines()[0]
    for way in ("local folder", str(paths.pretrained / "org/absent"), "from_scratch", "there now: org/mini"):
        assert way in said.splitlines()[1]


@pytest.mark.parametrize("name", ["", "./nowhere", "/no/such/folder", "a/b/c", "~nobody-here/x", "x" * 300])
def test_a_name_that_is_no_hub_id_is_refused_without_asking_the_hub(paths: JobPaths, name: str) -> None:
    with pytest.raises(ContractError, match="not a Hugging Face id"):
        find_encoder(name, paths)


def test_foreign_files_beside_an_encoder_are_no_part_of_it(paths: JobPaths, learned: Path) -> None:
    folder = make_encoder(paths.pretrained / "mini", learned)
    files = encoder_files(folder)
    make_encoder(paths.pretrained / ".ipynb_checkpoints" / "mini", learned)
    add_foreign_files(paths.pretrained)
    assert encoder_files(folder) == files
    with pytest.raises(ContractError, match="there now: mini\\)"):
        find_encoder("./absent", paths)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ContractError, match=r"has no tokenizer file"):
        find_encoder("mini", paths)


def test_an_encoder_in_the_local_hugging_face_cache_is_found_offline(paths: JobPaths, learned: Path) -> None:
    stored = paths.root / "hf" / "hub" / "models--org--mini"
    make_encoder(stored / "snapshots" / "0123", learned)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0123")
    assert resolved("org/mini", paths, HF_HUB_OFFLINE="1").strip() == str(stored / "snapshots" / "0123")


def test_the_tokenizer_is_copied_without_weights_truncation_and_padding(paths: JobPaths, learned: Path) -> None:
    folder = make_encoder(paths.root / "mine", learned)
    baked = Tokenizer.from_file(str(folder / "tokenizer.json"))
    baked.enable_truncation(3)
    baked.enable_padding(length=9)
    baked.save(str(folder / "tokenizer.json"))
    target = paths.root / "target"
    write_encoder_files(folder, target)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    copied = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert (copied.truncation, copied.padding) == (None, None)
    assert len(copied.encode(TEXTS[0]).ids) > 9


@pytest.mark.parametrize("own_process", [False, True])
def test_a_vocabulary_file_alone_is_converted_to_a_tokenizer(paths, learned, own_process, monkeypatch):
    if own_process:  # as in a job; tests/conftest.py replaces it
        monkeypatch.setattr(encoder_source, "run_transformers", run_transformers)
    folder = make_encoder(paths.root / "mine", learned)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()
    target = paths.root / "target"
    write_encoder_files(folder, target)
    converted, original = ChunkTokenizer.from_folder(target), ChunkTokenizer.from_folder(learned)
    assert converted.encode_batch(TEXTS[:5]) == original.encode_batch(TEXTS[:5])
    assert (converted.prefix, converted.suffix) == (original.prefix, original.suffix)


def test_an_error_in_the_process_of_transformers_is_raised_as_its_last_line(tmp_path: Path) -> None:
    raised = []
    assert run_transformers is not encoder_source.run_transformers, "tests/conftest.py replaces it"
    for ask in (run_transformers, encoder_source.run_transformers):
        with pytest.raises(RuntimeError) as error:
            ask("tokenizer", str(tmp_path / "nowhere"), str(tmp_path))
        raised.append(str(error.value))
    assert raised[0] == raised[1] != ""


LEARN = """
from pathlib import Path
from tests.text.test_encoder_source import TEXTS
from container.text.vocabulary import learn_vocabulary
learn_vocabulary(iter(TEXTS), Path({target!r}), encoder_config={{}}, seed=1)
"""


def test_a_vocabulary_is_the_same_in_every_process(tmp_path: Path) -> None:
    for run in "abc":
        run_python(LEARN.format(target=str(tmp_path / run)))
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert len({(tmp_path / run / name).read_bytes() for run in "abc"}) == 1, name


def test_a_learned_vocabulary_spells_the_text_it_was_learned_on(learned: Path) -> None:
    tokenizer = Tokenizer.from_file(str(learned / "tokenizer.json"))
    unknown = tokenizer.token_to_id("[UNK]")
    assert tokenizer.get_vocab_size() <= 200
    for text in TEXTS:
        encoding = tokenizer.encode(text)
        assert unknown not in encoding.ids
        assert (encoding.tokens[0], encoding.tokens[-1]) == ("[CLS]", "[SEP]")
    assert tokenizer.decode(tokenizer.encode("the dress fits well").ids) == "the dress fits well"
    assert len(tokenizer.encode("dress").ids) == 3, "a frequent word is one token"


def test_transformers_loads_a_learned_vocabulary_and_encodes_the_same(learned: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(learned)
    ours = Tokenizer.from_file(str(learned / "tokenizer.json"))
    assert [theirs(text)["input_ids"] for text in TEXTS[:20]] == [ours.encode(text).ids for text in TEXTS[:20]]
    assert (theirs.pad_token_id, theirs.mask_token) == (ours.token_to_id("[PAD]"), "[MASK]")
    assert AutoConfig.from_pretrained(learned).vocab_size == ours.get_vocab_size()


def test_without_text_there_is_no_vocabulary_to_learn(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="from_scratch learns its vocabulary"):
        learn_vocabulary(iter(["", " "]), tmp_path, encoder_config={}, seed=1)


@pytest.mark.parametrize(
    "words",
    [("ไม่ดี", "ไมดี"), ("है", "ह"), ("ma", "mà", "má", "mả", "mã", "mạ"), ("が", "か"), ("мой", "мои"), ("año", "ano")],
)
def test_words_that_differ_in_a_mark_have_different_tokens(tmp_path: Path, words: tuple[str, ...]) -> None:
    learn_vocabulary([" ".join(words)] * 3, tmp_path, encoder_config={"vocab_size": 100}, seed=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = {tuple(tokenizer.encode(word, add_special_tokens=False).ids) for word in words}
    assert len(encoded) == len(words)
    assert tokenizer.token_to_id("[UNK]") not in {token for each in encoded for token in each}


def test_a_composed_letter_and_its_parts_are_the_same(tmp_path: Path) -> None:
    learn_vocabulary(["caf\u00e9"] * 3, tmp_path, encoder_config={"vocab_size": 100}, seed=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("cafe\u0301").ids == tokenizer.encode("caf\u00e9").ids


def test_a_writing_system_of_thousands_of_letters_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(chr(0x4E00 + i) * (4000 // (i + 1) + 1) for i in range(3000))
    learn_vocabulary([text], tmp_path, encoder_config={"vocab_size": 8000}, seed=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    unknown = tokenizer.encode(text).ids.count(tokenizer.token_to_id("[UNK]"))
    assert unknown < 0.002 * len(text)
    assert "unknown to the encoder" not in caplog.text
    learn_vocabulary([text], tmp_path, encoder_config={"vocab_size": 2000}, seed=1)
    assert "the vocabulary has 997 of 3000 letters" in caplog.text


def test_many_letters_leave_room_in_a_small_vocabulary(tmp_path: Path) -> None:
    letters = [" ".join(chr(point) for point in range(0x4E00, 0x4E00 + 3000))]
    learn_vocabulary([*letters, *TEXTS], tmp_path, encoder_config={"vocab_size": 100}, seed=1)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() <= 100


@pytest.mark.parametrize(
    ("encoder_config", "names"),
    [({"vocab_size": 10}, ["vocab_size is 10"]), ({"max_position_embeddings": 64}, ["max_sen_len: is 512", "64"])],
)
def test_impossible_sizes_are_refused_by_name(tmp_path: Path, encoder_config: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ContractError) as raised:
        learn_vocabulary(TEXTS, tmp_path / "new", encoder_config=encoder_config, seed=1)
    assert all(name in raised.value.cause for name in names)
    assert not (tmp_path / "new").exists()


def test_an_unknown_model_type_is_refused_with_the_nearest_known(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="'roberto' is unknown to transformers; did you mean 'roberta'"):
        learn_vocabulary(TEXTS, tmp_path, encoder_config={"model_type": "roberto"}, seed=1)


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "modernbert"])
def test_a_from_scratch_config_builds_an_encoder_of_its_family(tmp_path: Path, model_type: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    learn_vocabulary(TEXTS, tmp_path, encoder_config={"model_type": model_type, **sizes}, seed=1, max_sen_len=600)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == (model_type, 32, 1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert (config.vocab_size, config.pad_token_id) == (tokenizer.get_vocab_size(), tokenizer.token_to_id("[PAD]"))
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        longest = model(input_ids=torch.full((1, 600), 7)).last_hidden_state
    assert longest.shape == (1, 600, 32)


def test_positions_of_roberta_kinds_begin_after_the_padding_id() -> None:
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    check_positions(config, 512)
    with pytest.raises(ContractError, match="max_sen_len: is 513"):
        check_positions(config, 513)
    with pytest.raises(ContractError, match="secondary_max_sen_len: is 513") as error:
        check_positions(config, 513, setting="secondary_max_sen_len")
    assert error.value.fix.startswith("Set secondary_max_sen_len to 512")


def test_overrides_that_keep_every_shape_are_applied(learned: Path) -> None:
    config = json.loads((learned / "config.json").read_text())
    changed = with_overrides(config, {"hidden_dropout_prob": 0.3, "hidden_size": 128})
    assert changed == {**config, "hidden_dropout_prob": 0.3}


@pytest.mark.parametrize(
    ("override", "cause"),
    [
        ({"hidden_size": 256}, "hidden_size is 256, but the pretrained encoder's weights are for 128"),
        ({"hidden_droput_prob": 0.1}, "did you mean 'hidden_dropout_prob'"),
        ({"hidden_dropout_prob": "much"}, "hidden_dropout_prob"),
    ],
)
def test_overrides_that_cannot_be_are_refused(learned: Path, override: dict[str, Any], cause: str) -> None:
    with pytest.raises(ContractError) as raised:
        with_overrides(json.loads((learned / "config.json").read_text()), override)
    assert cause in raised.value.cause


@cache
def config_class(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "electra", "albert", "modernbert", "mpnet"])
def test_every_number_that_shapes_a_weight_is_a_shape_key(model_type: str) -> None:
    import torch
    from transformers import AutoModel

    def shapes(**settings: int) -> dict[str, torch.Size]:
        with torch.device("meta"):
            model = AutoModel.from_config(config_class(model_type)(**settings))
        return {name: weight.shape for name, weight in model.state_dict().items()}

    plain = config_class(model_type)()
    whole = [key for key, value in plain.to_dict().items() if isinstance(value, int) and not isinstance(value, bool)]
    free = [key for key in whole if key not in SHAPE_KEYS]
    original = shapes()
    for key in free:
        assert shapes(**{key: 2 * getattr(plain, key) + 2}) == original, key
