"""Kind packages: model folders and archives with members that are missing, damaged, foreign or no files."""

import io
import json
import math
import os
import shutil
import tarfile
from pathlib import Path
from random import Random
from typing import Any

from container.job.failure import Failure
from container.predictor import Predictor
from container.serving.runner import load_runner
from contracts.artifacts import MODEL_FILES, SERVING_FILES
from contracts.errors import ContractError
from contracts.serving import CALIBRATION
from contracts.steps import ARCHIVED_MODEL, PACKAGE, PAYLOAD
from testing.foreign_files import add_foreign_files
from testing.fuzz import oracle, values
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome
from testing.fuzz.run_product import ended_step

RECORDS = [
    {"chat": "great item", "price": 3.5, "quantity": 1, "color": "red"},
    {"chat": None, "price": None, "quantity": 2, "color": "never seen"},
    {"chat": "broken item " * 20, "price": -1, "quantity": 3, "color": None},
]


def run(case: Case) -> Outcome:
    """Generate a model folder or an archive, and load it in one of the ways in which the product loads it."""
    rng, folder = case.rng, case.folder / "job" / "model"
    # Without files.json, a changed file is loaded, as in a model of an earlier version.
    shutil.copytree(case.model, folder, ignore=shutil.ignore_patterns("*.pth", "*.pkl", MODEL_FILES))
    recipe = case.recipe
    archived = rng.random() < 0.3
    for _ in range(rng.choice((1, 1, 1, 2)) if not archived or rng.random() < 0.3 else 0):
        change_member(folder, rng, recipe)
    if rng.random() < 0.3:
        recipe.append(f"{len(add_foreign_files(folder))} foreign files")
    if rng.random() < 0.15:
        (folder / CALIBRATION).write_text(_calibration(rng, recipe))
    if archived:
        return _packaged(case, folder, recipe, archived=True)
    way = rng.choice(("predictor", "predictor", "server", "server", "package"))
    recipe.insert(0, way)
    if way == "package":
        return _packaged(case, folder, recipe, archived=False)
    case.begin()
    return _loaded(folder, recipe, server=way == "server")


def _loaded(folder: Path, recipe: list[str], *, server: bool) -> Outcome:
    """Load the folder as the server or a user's program does, and predict."""
    try:
        if server:
            runner = load_runner(folder)
            body, *_ = runner.answer(json.dumps(RECORDS).encode(), {"Content-Type": "application/json"})
            rows = [entry["probabilities"] for entry in json.loads(body)["predictions"]]
        else:
            rows = Predictor.load(folder).predict(RECORDS).tolist()
    except ContractError as error:
        problems = oracle.message_problems(Failure.from_exception(error).text())
        return Outcome(REFUSED, problems, recipe)
    if len(rows) != len(RECORDS):
        return Outcome(ACCEPTED, [f"{len(rows)} predictions for {len(RECORDS)} records"], recipe)
    return Outcome(ACCEPTED, oracle.probability_problems("the loaded model", rows), recipe)


def _packaged(case: Case, model: Path, recipe: list[str], *, archived: bool) -> Outcome:
    """Run the package step, and sometimes the payload step on its package."""
    rng, root = case.rng, case.folder / "job"
    source = PACKAGE.input("model_input").path(root)
    source.mkdir(parents=True)
    if archived:
        (source / ARCHIVED_MODEL).write_bytes(_archive(model, rng, recipe))
        shutil.rmtree(model)
    else:
        source.rmdir()
        model.rename(source)
    command, contract = "package", PACKAGE
    if archived and rng.random() < 0.2:  # the archive is given to the payload step, which loads it in a new process
        command, contract = "payload", PAYLOAD
    recipe.insert(0, f"{command} step")
    code = ended_step(case, command, {})
    outcome = Outcome(ACCEPTED if code == 0 else REFUSED, recipe=recipe)
    if code != 0:
        outputs = [folder.path(root) / ARCHIVED_MODEL for folder in contract.outputs]
        message = root / "output" / "message"
        outcome.problems = oracle.refused_step_problems(message, []) if code == 1 else [f"exit code {code}"]
        outcome.problems += [f"{path.name} is left after exit 1" for path in outputs if path.is_file()]
        return outcome
    if command == "package":
        with tarfile.open(PACKAGE.output("packaged_model").path(root) / ARCHIVED_MODEL) as package:
            missing = set(SERVING_FILES) - set(package.getnames())
            links = [member.name for member in package if not member.isreg()]
        outcome.problems = [f"the package lacks {sorted(missing)}"] if missing else []
        outcome.problems += [f"the package holds links: {links[:3]}"] if links else []
    return outcome


def change_member(folder: Path, rng: Random, recipe: list[str]) -> None:
    """Remove, damage or replace a file of the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    artifacts = [path for path in files if path.parent == folder and path.suffix == ".json"]
    path = rng.choice(artifacts if artifacts and rng.random() < 0.5 else files)
    way = rng.choice(("remove", "cut", "flip", "empty", "json", "json", "json", "json", "text", "file"))
    data = path.read_bytes()
    if way == "json" and path.suffix == ".json":
        path.write_text(_changed_json(data, rng, recipe, path.name), "utf-8", errors="surrogatepass")
        return
    if way == "file":
        way = rng.choice(("folder", "pipe", "link", "dangling", "loop", "other"))
        path.unlink()
        other = rng.choice(sorted(entry for entry in folder.rglob("*") if entry.is_file()))
        {
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to("/etc/hostname"),
            "dangling": lambda: path.symlink_to("nothing"),
            "loop": lambda: path.symlink_to(path),
            "other": lambda: shutil.copy(other, path),
        }[way]()
        recipe.append(f"{path.relative_to(folder)}: {way} {other.name if way == 'other' else ''}")
        return
    recipe.append(f"{path.relative_to(folder)}: {way}")
    if way == "remove":
        path.unlink()
        return
    place = rng.randrange(max(len(data), 1))
    path.write_bytes(
        {
            "cut": data[:place],
            "flip": data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :] if data else b"",
            "empty": b"",
            "text": rng.choice(
                (b"null", b"[]", b"{}", b'"x"', b"1", b"\xff\xfe", b"\0" * 100, b"NaN", b"[1,", b"\n\n\n")
            ),
        }.get(way, rng.choice((b"[]", b"{}")))
    )


def _changed_json(data: bytes, rng: Random, recipe: list[str], name: str) -> str:
    """Change one value or key somewhere in a JSON document."""
    try:
        content = json.loads(data)
    except ValueError:  # damaged by another mutation
        return "[1]"
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in list(entries)[:50]:
            places.append((node, key))
            walk(value)

    walk(content)
    if not places:
        recipe.append(f"{name}: {data[:20]!r} becomes [1]")
        return "[1]"
    node, key = rng.choice(places)
    way = rng.choice(("remove", "replace", "replace", "replace", "add", "twice"))
    new: Any = rng.choice(
        (None, [], {}, "", "x", "\ud800", 0, -1, 1, 2**31, 10**30, 1e300, True, [None], [[]], {"": None}, ["a",
        "a"], math.nan,
         math.inf, 0.5, "price", "NaN", [1, 2, 3], {"a": {"b": 1}}, values.long_text(rng)[:5000])
    )  # fmt: skip
    recipe.append(f"{name}: {way} {key!r} with {str(new)[:40]!r}")
    if way == "remove":
        del node[key]
    elif way == "add" and isinstance(node, dict):
        node[rng.choice(("", "x", "price", "0"))] = new
    elif way == "twice" and isinstance(node, list):
        node.append(node[key])
    else:
        node[key] = new
    return json.dumps(content, ensure_ascii=rng.random() < 0.9)


def _calibration(rng: Random, recipe: list[str]) -> str:
    text = rng.choice(
        ('{"scores": [0, 1], "probabilities": [0, 1]}', '{"scores": [0, 0.5, 1], "probabilities": [0, 0.1, 0.9]}', "[]",
         '{"scores": [], "probabilities": []}', '{"scores": [0], "probabilities": [0]}',
         '{"scores": [1, 0], "probabilities": [0, 1]}',
         '{"scores": [0, NaN], "probabilities": [0, 1]}', '{"scores": ["0", "1"], "probabilities": [0, 1]}',
         '{"scores": [0, 1], "probabilities": [0, 1e400]}', '{"scores": [[0], [1]], "probabilities": [0, 1]}',
         '{"scores": [true, 1], "probabilities": [0, 1]}', '{"scores": {"a": 1}, "probabilities": [0, 1]}', "", "{",
         '{"scores": [0, 0], "probabilities": [0, 1]}', '{"scores": [0, 1], "probabilities": [0.5, 0.5]}',
         '{"scores": [0, ' + "9" * 5000 + '], "probabilities": [0, 1]}', "[" * 5000)
    )  # fmt: skip
    recipe.append(f"calibration.json: {text[:60]}")
    return text


def _archive(folder: Path, rng: Random, recipe: list[str]) -> bytes:
    """Return the folder as a tar.gz, with odd members, damaged, or in another form."""
    way = rng.choice(
        ("good", "members", "members", "members", "cut", "flip", "plain tar", "zip name", "empty", "folder")
    )
    recipe.append(f"archive: {way}")
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w" if way == "plain tar" else "w:gz") as archive:
        names = sorted(path for path in folder.rglob("*"))
        prefix = "model/" if way == "folder" else rng.choice(("", "./"))
        odd = _odd_members(rng, recipe) if way == "members" else []
        first = rng.random() < 0.5
        for member, content in odd if first else []:
            archive.addfile(member, io.BytesIO(content))
        for path in names if way != "empty" else []:
            archive.add(path, prefix + str(path.relative_to(folder)), recursive=False)
        for member, content in [] if first else odd:
            archive.addfile(member, io.BytesIO(content))
    data = sink.getvalue()
    place = rng.randrange(len(data))
    if way == "cut":
        return data[:place]
    if way == "flip":
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    return b"PK\3\4" + data if way == "zip name" else data


def _odd_members(rng: Random, recipe: list[str]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return members that an archive should not have, and some that it may have."""
    name = rng.choice(
        ("../outside", "/tmp/outside", "a/../../b", "model.onnx", "./model.onnx", "tokenizer", "decision.json/x", "",
        ".", "é",
         "a\\b", "n" * 300, "a/" * 500 + "x", "d\udce9", "nul", "model.onnx/", "MODEL.ONNX", "preprocessing.json",
         "code/inference.py")
    )  # fmt: skip
    kind = rng.choice(
        (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE,
         tarfile.CHRTYPE,
         tarfile.DIRTYPE, tarfile.CONTTYPE, b"Z")
    )  # fmt: skip
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, rng.choice((0o644, 0, 0o7777))
    member.linkname = rng.choice(("model.onnx", "/etc/passwd", "../x", "nothing"))
    content = rng.choice((b"", b"[]", b"{}", b"x" * 1000)) if kind == tarfile.REGTYPE else b""
    member.size = len(content)
    member.mtime = rng.choice((0, 2**33, -1))
    recipe.append(f"member {name[:40]!r} of type {kind!r}, {len(content)} bytes")
    return [(member, content)]
