"""Generate the demo's data: refund claims with chats, shipment events, numbers and categories; some are abusive.

The chat, the shipment events, the numbers and the categories each change the log-odds of the label, and a suspicious
chat weighs more for a young account. So neither the texts nor the table alone determine the label.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from contracts.paths import JobPaths

NUMBERS = ["price", "quantity", "seller_rating", "account_age_days"]
CATEGORIES = ["marketplace", "category"]
SPLIT_ENDS = {"train": 0.70, "val": 0.85, "test": 1.0}
TRAIN_PARTS = 3

# With these values, texts and table explain about the same variance, and together most of it.
CHAT_SCALE = 3.8
EVENTS_SCALE = 3.2
TABLE_SCALE = 5.0
INTERACTION_SCALE = 1.2
INTERCEPT = -0.8

MISSING_CELLS = 0.04
EMPTY_CHAT = 0.04
UNMARKED_CHAT = 0.10


@dataclass(frozen=True)
class Statement:
    """A statement in several wordings, and what it adds to the log-odds of an abusive claim, before scaling."""

    weight: float
    wordings: Sequence[str]


@dataclass(frozen=True)
class Written:
    """A text and what it adds to the log-odds, before scaling."""

    text: str
    weight: float


_CONTENT = json.loads(Path(__file__).with_name("demo_phrases.json").read_text(encoding="utf-8"))
STATEMENTS = {kind: [Statement(**entry) for entry in entries] for kind, entries in _CONTENT["statements"].items()}
WORDINGS: dict[str, list[str]] = _CONTENT["wordings"]
WEIGHTS: dict[str, dict[str, float]] = _CONTENT["weights"]
_Choice = TypeVar("_Choice")


def write_demo_data(root: Path, *, rows: int, seed: int) -> None:
    """Write `rows` refund claims as CSV files under root/input/data: 70 % train (in parts), 15 % val, 15 % test.

    The same rows and seed give the same bytes.
    """
    table = demo_table(rows, seed=seed)
    paths = JobPaths(root)
    start = 0
    for split, end in SPLIT_ENDS.items():
        stop = round(rows * end)
        parts = TRAIN_PARTS if split == "train" else 1
        bounds = np.linspace(start, stop, parts + 1).astype(int)
        folder = paths.channel(split)
        folder.mkdir(parents=True, exist_ok=True)
        for part, (first, last) in enumerate(pairwise(bounds)):
            table[first:last].to_csv(folder / f"part-{part:05d}.csv", index=False)
        start = stop


def table_only_auroc(root: Path) -> float:
    """Return the area under the ROC curve, on test, of gradient boosting on the columns of the table."""
    # Imported here: the import takes a second, and writing the data does not need it.
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    train, test = (_read(JobPaths(root).channel(split)) for split in ("train", "test"))
    features = {"train": train[NUMBERS].copy(), "test": test[NUMBERS].copy()}
    for name in CATEGORIES:
        values = pd.CategoricalDtype(sorted(train[name].dropna().unique()))
        for split, table in (("train", train), ("test", test)):
            features[split][name] = table[name].astype(values)
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", learning_rate=0.05, random_state=0)
    model.fit(features["train"], train["label"])
    return float(roc_auc_score(test["label"], model.predict_proba(features["test"])[:, 1]))


def demo_table(rows: int, *, seed: int) -> pd.DataFrame:
    """Return all claims in one table: order_id, chat, shiptrack, four numbers, two categories, label 0 or 1."""
    rng = np.random.default_rng(seed)
    chats = [_chat(rng) for _ in range(rows)]
    events = [_events(rng) for _ in range(rows)]
    dearness, repute, newness = rng.standard_normal((3, rows))
    quantity = 1 + rng.poisson(0.8, rows)
    marketplace, category = (rng.choice(list(WEIGHTS[name]), rows) for name in CATEGORIES)

    from_table = (
        0.8 * newness
        + 0.7 * dearness
        + 0.4 * repute
        + 0.3 * (quantity - 1.8)
        + 0.7 * np.array([WEIGHTS["marketplace"][name] for name in marketplace])
        + 0.7 * np.array([WEIGHTS["category"][name] for name in category])
    )
    from_chat = np.array([chat.weight for chat in chats])
    log_odds = (
        INTERCEPT
        + CHAT_SCALE * from_chat
        + EVENTS_SCALE * np.array([event.weight for event in events])
        + TABLE_SCALE * from_table
        + INTERACTION_SCALE * from_chat * newness
    )
    label = (rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(int)

    table = pd.DataFrame(
        {
            "order_id": [f"A-{row:06d}" for row in range(rows)],
            "chat": [chat.text for chat in chats],
            "shiptrack": [event.text for event in events],
            "price": np.round(np.exp(3.6 + 0.6 * dearness), 2),
            "quantity": pd.array(quantity, dtype="Int64"),
            "seller_rating": np.round(np.clip(4.2 + 0.45 * repute, 1.0, 5.0), 1),
            "account_age_days": pd.array(np.ceil(np.exp(6.0 - 0.7 * newness)).astype(int), dtype="Int64"),
            "marketplace": marketplace,
            "category": category,
            "label": label,
        }
    )
    for name in (*NUMBERS, *CATEGORIES):
        table.loc[rng.random(rows) < MISSING_CELLS, name] = None
    return table


def _chat(rng: np.random.Generator) -> Written:
    """Return two to six messages of buyer and seller: a claim, the buyer's behaviour, and lines without information."""
    if rng.random() < EMPTY_CHAT:
        return Written("", 0.0)
    slots = {
        "item": _one_of(rng, WORDINGS["items"]),
        "name": _one_of(rng, WORDINGS["names"]),
        "place": _one_of(rng, WORDINGS["places"]),
        "days": str(rng.integers(2, 31)),
        "order": str(rng.integers(1000, 10000)),
    }
    claim = _one_of(rng, STATEMENTS["claims"])
    conduct = [_one_of(rng, STATEMENTS["conduct"]) for _ in range(rng.choice(3, p=[0.1, 0.6, 0.3]))]
    messages = [f"{_one_of(rng, WORDINGS['greetings'])} {_one_of(rng, claim.wordings)}"]
    later = conduct
    if conduct and rng.random() < 0.3:
        messages[0] += " " + _one_of(rng, conduct[0].wordings)
        later = conduct[1:]
    messages.append(_one_of(rng, WORDINGS["seller lines"]))
    for statement in later:
        message = _one_of(rng, statement.wordings)
        messages.append(f"{_one_of(rng, WORDINGS['buyer lines'])} {message}" if rng.random() < 0.25 else message)
    for _ in range(rng.choice(3, p=[0.4, 0.4, 0.2])):
        line = _one_of(rng, WORDINGS["seller lines"] if rng.random() < 0.5 else WORDINGS["buyer lines"])
        messages.insert(int(rng.integers(1, len(messages) + 1)), line)
    messages = [_decorate(rng, message.format(**slots)) for message in messages]
    marked = rng.random() >= UNMARKED_CHAT
    text = "".join(f"[bom]{message}[eom]" for message in messages) if marked else " ".join(messages)
    return Written(text, claim.weight + sum(statement.weight for statement in conduct))


def _events(rng: np.random.Generator) -> Written:
    """Return a shipment history: two or three normal events, perhaps an incident, the outcome."""
    month, day = int(rng.integers(12)), int(rng.integers(1, 21))
    incident = _one_of(rng, STATEMENTS["incidents"]) if rng.random() < 0.6 else None
    outcome = _one_of(rng, STATEMENTS["outcomes"])
    statuses = ["label created"]
    if rng.random() < 0.5:
        statuses.append(_one_of(rng, WORDINGS["transit"]))
    statuses.append(_one_of(rng, incident.wordings if incident else WORDINGS["transit"]))
    statuses.append(_one_of(rng, outcome.wordings))
    text = ""
    for status in statuses:
        text += f"[bom]{WORDINGS['months'][month]} {day:02d} {_one_of(rng, WORDINGS['places'])}: {status}[eom]"
        day += int(rng.integers(0, 3))
    return Written(text, outcome.weight + (incident.weight if incident else 0.0))


def _decorate(rng: np.random.Generator, message: str) -> str:
    """Return the message as a web form would send it: always with entities, sometimes with tags and emoji."""
    message = message.replace("&", "&amp;").replace("'", "&#39;")
    chance = rng.random()
    if chance < 0.12:
        message = f"<p>{message}</p>"
    elif chance < 0.2:
        message = message.replace(". ", ".<br/>") + "&nbsp;"
    elif chance < 0.26:
        message = f"<b>{message}</b>"
    elif chance < 0.45:
        message = f"{message} {_one_of(rng, WORDINGS['emoji'])}"
    return message


def _one_of(rng: np.random.Generator, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(rng.integers(len(choices)))]


def _read(folder: Path) -> pd.DataFrame:
    parts = [pd.read_csv(path, dtype=dict.fromkeys(CATEGORIES, "str")) for path in sorted(folder.glob("*.csv"))]
    return pd.concat(parts, ignore_index=True)
