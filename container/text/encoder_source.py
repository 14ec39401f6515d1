"""Find the encoder that a job names, and copy its config and tokenizer, but not its weights."""

import json
import logging
import os
import shutil
from codecs import BOM_UTF8
from pathlib import Path

from container.text.encoder_config import run_transformers
from container.text.weight_files import WEIGHTS, check_weights, weight_files
from contracts.errors import ContractError
from contracts.input_files import check_stand_in, is_foreign
from contracts.model_classes import FROM_SCRATCH
from contracts.paths import JobPaths

_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    *"tokenizer_config.json special_tokens_map.json added_tokens.json merges.txt".split(),
)
_HUB_TIMEOUT = 10.0  # seconds until the hub counts as unreachable

logger = logging.getLogger(__name__)


def find_encoder(name: str, paths: JobPaths) -> Path | None:
    """Return the folder of the encoder that hyperparameter `tokenizer` names; None for from_scratch.

    The search order is: from_scratch, a local folder, the pretrained channel or a folder in it, the local Hugging Face
    cache, the hub.

    Raises:
        ContractError: the encoder is not found, its folder is without config.json, weights or a vocabulary, or one of
            these files is damaged.
    """
    if name == FROM_SCRATCH:
        return None
    for folder in _local_folders(name, paths.pretrained):
        if os.path.isdir(folder):  # False also for a name that is too long for a file
            missing = _missing_files(folder)
            if missing:
                raise ContractError(
                    f"tokenizer: {name!r} is the folder {folder}, which has no {missing}",
                    "Copy all files of the encoder there: config.json, tokenizer files and weights.",
                )
            _check_files(folder)
            return folder
    archives = [path.name for path in paths.pretrained.glob("*") if path.name.lower().endswith(_ARCHIVES)]
    if archives:
        raise ContractError(
            f"tokenizer: the encoder {name!r} is no folder of {paths.pretrained}, which has the archive "
            f"{min(archives)}",
            "Unpack the archive, and give the channel its files. The job does not unpack it.",
        )
    folder, reason = _from_hub(name)
    if folder is None:
        raise _not_found(name, paths.pretrained, reason)
    _check_files(folder)
    return folder


def encoder_files(folder: Path) -> list[Path]:
    """Return the files of an encoder: configuration, tokenizer and weights."""
    patterns = ("config.json", *_TOKENIZER_FILES, "*.safetensors", "*.bin")
    return sorted({path for pattern in patterns for path in _matching(folder, pattern)})


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths below a folder that match a glob pattern, without foreign ones."""
    return [path for path in folder.glob(pattern) if not any(map(is_foreign, path.relative_to(folder).parts))]


def write_encoder_files(source: Path, target: Path) -> None:
    """Copy config.json to `target`, and write the tokenizer that AutoTokenizer loads from `source` as tokenizer.json.

    Log a warning where the source's tokenizer.json alone encodes a text differently.

    Raises:
        ContractError: a file is damaged, the files contradict each other, or the encoder lacks one of the tokens.
    """
    target.mkdir(parents=True, exist_ok=True)
    copies = target / "source"
    copies.mkdir()
    for pattern in ("config.json", *_TOKENIZER_FILES):
        for path in _matching(source, pattern):
            (copies / path.name).write_bytes(path.read_bytes().removeprefix(BOM_UTF8))  # transformers refuses the mark
    shutil.copyfile(copies / "config.json", target / "config.json")
    try:
        difference = json.loads(run_transformers("tokenizer", str(copies), str(target)))
    except RuntimeError as error:
        problem = str(error).removeprefix("RuntimeError: ").replace(str(copies), str(source))
        raise ContractError(
            f"tokenizer: AutoTokenizer cannot load the files in {source} as a tokenizer: {problem}",
            "Correct them, or copy all files of the encoder again.",
        ) from None
    shutil.rmtree(copies)
    if difference:
        logger.warning(
            f"encoder {source}: the job encodes text as AutoTokenizer does, which reads more than tokenizer.json: "
            f"{difference['text']!r} becomes {difference['tokens']}, with tokenizer.json alone {difference['alone']}. "
            f"To use tokenizer.json as it is, set tokenizer_class in {source / 'tokenizer_config.json'} to "
            "PreTrainedTokenizerFast."
        )


def _local_folders(name: str, pretrained: Path) -> list[Path]:
    if not name.strip():
        return []
    folders = [Path(os.path.expanduser(name)), pretrained / name, pretrained / Path(name).name]
    if (pretrained / "config.json").is_file() and (name == pretrained.name or not _encoders_in(pretrained)):
        folders.append(pretrained)
    return folders


def _encoders_in(pretrained: Path) -> list[str]:
    """Return the names of the encoders in the pretrained channel, as name or organisation/name."""
    configs = [*_matching(pretrained, "*/config.json"), *_matching(pretrained, "*/*/config.json")]
    return sorted(str(path.parent.relative_to(pretrained)) for path in configs if not _missing_files(path.parent))


def _check_files(folder: Path) -> None:
    """Raise ContractError for a file of an encoder that is damaged, or a pointer or a page in its place."""
    tokenizer = folder / "tokenizer.json"
    patterns = (tokenizer.name,) if tokenizer.is_file() else _TOKENIZER_FILES
    for pattern in ("config.json", *patterns):
        for path in _matching(folder, pattern):
            check_stand_in(path)
    check_weights(folder)


def _missing_files(folder: Path) -> str:
    """Return the name of a file that an encoder's folder lacks, or ""."""
    if not (folder / "config.json").is_file():
        return "config.json"
    weights = weight_files(folder)
    if not weights:
        return f"weights ({' or '.join(WEIGHTS)})"
    lost = [shard for shard in weights if not shard.is_file()]
    if lost:
        return f"{lost[0].name}, which {weights[0].name} names"
    if not any(_matching(folder, pattern) for pattern in _VOCABULARIES):
        return f"tokenizer file ({', '.join(_VOCABULARIES)})"
    return ""


def _from_hub(name: str) -> tuple[Path | None, str]:
    """Return the cached folder of a model, downloaded if necessary; None and the reason if this fails."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if not _missing_files(cached):
            return cached, ""
    except HFValidationError:
        return None, "no folder of this name exists, and it is not a Hugging Face id"
    except LocalEntryNotFoundError:
        pass
    try:
        info = HfApi().model_info(name, timeout=_HUB_TIMEOUT)  # a quick check before a long download
        files = [entry.rfilename for entry in info.siblings or []]
        kind = "safetensors" if any(file in WEIGHTS[:2] for file in files) else "bin"
        stem = "model" if kind == "safetensors" else "pytorch_model"
        patterns = ["config.json", *_TOKENIZER_FILES, f"{stem}*.{kind}", f"{stem}.{kind}.index.json"]
        folder = Path(snapshot_download(name, allow_patterns=patterns, etag_timeout=_HUB_TIMEOUT))
    except Exception as error:  # the hub's and the network's errors have no common base
        return None, f"the hub reports: {' '.join(str(error).split())}"
    missing = _missing_files(folder)
    return (None, f"the hub has it without {missing}") if missing else (folder, "")


def _not_found(name: str, pretrained: Path, reason: str) -> ContractError:
    encoders = _encoders_in(pretrained)
    if (pretrained / "config.json").is_file():
        encoders.insert(0, pretrained.name)
    listed = f"there now: {', '.join(encoders)}" if encoders else "nothing is there now"
    return ContractError(
        f"tokenizer: the encoder {name!r} was not found: {reason}",
        f"Put the encoder's files into {pretrained / name} ({listed}), or set tokenizer to a local folder, to a "
        f"Hugging Face id in the local cache or on the hub, or to {FROM_SCRATCH}.",
    )
