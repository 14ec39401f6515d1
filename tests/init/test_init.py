"""`init` writes a job that trains without a change, or one clear line."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from container.commands import main
from container.predictor import Predictor
from container.results.finish import init_warnings
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import SPLITS, JobPaths
from testing.jobs import run_train

ROWS = 200


def raw_table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, rows)
    words = np.array(["late", "parcel", "refund", "blue", "shoe", "size", "happy", "again"])
    frame = {
        "ticket": [f"T-{i:04d}" for i in range(rows)],
        "review": [" ".join(rng.choice(words, 9)) for _ in range(rows)],
        "price": [f"${value:,.2f}" for value in rng.normal(3000 + 500 * label, 400)],
        "colour": rng.choice(["red", "green"], rows),
        "outcome": np.where(label == 1, "yes", "no"),
    }
    return pd.DataFrame(frame)


def with_its_label_in_the_text(raw: pd.DataFrame) -> pd.DataFrame:
    named = np.where(raw["outcome"] == "yes", "accepted", "rejected")
    return raw.assign(outcome=named, review=raw["review"] + " " + named)


def run_init(tmp_path, frame: pd.DataFrame, *arguments: str, expect: int = 0) -> JobPaths:
    root, file = tmp_path / "job", tmp_path / "raw.csv"
    frame.to_csv(file, index=False)
    assert main(["init", str(file), "--root", str(root), *arguments]) == expect
    return JobPaths(root)


def settings(paths: JobPaths) -> dict[str, Any]:
    return json.loads((paths.config / "hyperparameters.json").read_text())


def split(paths: JobPaths, name: str) -> pd.DataFrame:
    return pd.read_parquet(paths.channel(name) / f"{name}.parquet").fillna("").astype(str)


def test_the_settings_and_the_page_say_what_the_table_is(tmp_path, capsys):
    paths = run_init(tmp_path, raw_table())
    assert settings(paths) == {
        "preset": "recommended",
        "id_name": "ticket",
        "text_name": "review",
        "label_name": "outcome",
        "tab_field_list": ["price"],
        "cat_field_list": ["colour"],
        "number_format": {"price": "1,234.5"},
        "multiclass_categories": ["no", "yes"],
        "model_class": "multimodal_bert",
        "tokenizer": "from_scratch",
        "max_sen_len": 64,
    }
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == f"python -m container train --root {paths.root}"
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 100
    assert "| price | number |" in (paths.root / "init.md").read_text()


def test_two_texts_have_an_encoder_each_and_three_are_joined(tmp_path):
    raw = raw_table().assign(review=lambda table: 3 * (table["review"] + " "))
    raw = raw.assign(answer=[f"{text} thanks" for text in raw["review"][::-1]])
    found = settings(run_init(tmp_path, raw))
    texts = (found["primary_text_name"], found["secondary_text_name"], found["model_class"])
    assert (texts, found["max_sen_len"]) == (("review", "answer", "trimodal_bert"), 64)
    found = settings(run_init(tmp_path, raw.assign(reply=raw["answer"] + " again"), "--force"))
    assert (found["text_name"], found["model_class"]) == (["review", "answer", "reply"], "multimodal_bert")
    assert found["max_sen_len"] == 256


def test_a_table_without_a_text_and_parts_of_values_become_a_job_that_trains(tmp_path):
    raw = raw_table().drop(columns="review")
    domains = np.where(np.arange(ROWS) % 5 > 0, raw["outcome"], raw["colour"])
    paths = run_init(tmp_path, raw.assign(mail=raw["ticket"] + "@" + domains + ".org"))
    found = settings(paths)
    assert (found["model_class"], found["category_part"]) == ("tabular", {"mail": "domain"})
    assert not {"text_name", "tokenizer", "max_sen_len"} & found.keys()
    (paths.config / "hyperparameters.json").write_text(json.dumps({**found, "max_epochs": 1, "choose_on": "val"}))
    run_train(paths)
    predictor = Predictor.load(paths.model)
    record = {"price": "$3,000.00", "colour": "red", "mail": "new@Yes.org"}
    first, second = predictor.predict([record, {**record, "mail": "new@no.org"}])
    assert first[1] > second[1] + 0.2
    assert {part["part"] for part in predictor.explain([record])[0]["contributions"]} == set(record)


def test_texts_with_emoji_keep_them_and_a_second_text_with_html_is_cleaned(tmp_path):
    raw = raw_table().assign(review=lambda table: table["review"] + " \N{SLIGHTLY SMILING FACE}")
    raw = raw.assign(body="<p>" + raw["review"][::-1].to_numpy() + "</p>")
    found = settings(run_init(tmp_path, raw))
    assert "emoji_remover" not in found["primary_text_processing_steps"]
    assert found["secondary_text_processing_steps"][1] == "html_normalizer"
    (tmp_path / "one").mkdir()
    assert (
        "emoji_remover" not in settings(run_init(tmp_path / "one", raw.drop(columns="body")))["text_processing_steps"]
    )


def test_the_splits_have_all_rows_unchanged_and_do_not_depend_on_their_order(tmp_path):
    raw = raw_table()
    found = []
    for name, frame in (("a", raw), ("b", raw.sample(frac=1, random_state=3))):
        (tmp_path / name).mkdir()
        paths = run_init(tmp_path / name, frame)
        found.append({each: split(paths, each).sort_values("ticket").to_numpy().tolist() for each in SPLITS})
    assert found[0] == found[1]
    assert sorted(row for rows in found[0].values() for row in rows) == sorted(raw.to_numpy().tolist())
    assert [len(rows) for rows in found[0].values()] == [160, 20, 20]


def test_equal_rows_stay_together_unless_the_table_has_few_different_ones(tmp_path):
    rng = np.random.default_rng(0)
    few = pd.DataFrame({"color": rng.choice(["red", "blue"], ROWS), "size": rng.choice(["S", "M"], ROWS)})
    few["label"] = few["color"].eq("red").map({True: "yes", False: "no"})
    found = []
    for name, frame in (
        ("few", few),
        ("reordered", few[::-1]),
        ("twice", pd.concat([raw_table().drop(columns="ticket")] * 2)),
    ):
        (tmp_path / name).mkdir()
        paths = run_init(tmp_path / name, frame)
        found.append([sorted(map(tuple, split(paths, each).to_numpy().tolist())) for each in SPLITS])
    assert [len(rows) for rows in found[0]] == [160, 20, 20]
    assert found[1] == found[0]
    assert not set(found[2][0]) & set(found[2][1] + found[2][2])


def test_rows_of_one_group_are_in_one_split(tmp_path):
    raw = raw_table().assign(customer=[f"C{i % 40}" for i in range(ROWS)])
    paths = run_init(tmp_path, raw, "--group", "customer")
    customers = [set(split(paths, name)["customer"]) for name in SPLITS]
    assert not customers[0] & customers[1] | customers[0] & customers[2] | customers[1] & customers[2]
    assert settings(paths)["group_name"] == "customer", "also in the folds of train"
    (tmp_path / "id").mkdir()
    assert "group_name" not in settings(run_init(tmp_path / "id", raw, "--group", "customer", "--id", "customer"))


def test_the_newest_groups_are_test_and_the_rows_left_out_are_counted(tmp_path, capsys):
    days = pd.date_range("2026-01-01", periods=ROWS).strftime("%Y-%m-%d")
    raw = raw_table().assign(day=days, shop=[f"s{i // 8}" if i % 9 else "old" for i in range(ROWS)])
    paths = run_init(tmp_path, raw, "--group", "shop", "--time", "day")
    parts = [split(paths, name) for name in SPLITS]
    shops = [set(part["shop"]) for part in parts]
    assert sum(map(len, shops)) == len(set.union(*shops))
    assert parts[0]["day"].max() < parts[1]["day"].min() <= parts[1]["day"].max() < parts[2]["day"].min()
    left_out = ROWS - sum(map(len, parts))
    assert left_out > 0
    assert (
        f"{left_out} rows are left out: by day, they are older than the split of their shop" in capsys.readouterr().out
    )
    assert settings(paths)["group_name"] == "shop"


@pytest.mark.parametrize("options", [["--group", "shop"], ["--time", "shop"], ["--group", "shop", "--time", "shop"]])
def test_three_groups_or_times_are_three_splits_however_uneven(options, tmp_path):
    raw = raw_table().assign(shop=np.repeat([1, 2, 3], [170, 20, 10])).sample(frac=1, random_state=0)
    paths = run_init(tmp_path, raw, *options)
    assert sorted(len(split(paths, name)) for name in SPLITS) == [10, 20, 170]
    assert len(split(paths, "train")) == 170


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--group", "shop"], "of 2 groups; rows of one stay together"),
        (["--time", "shop"], "of 2 different times; rows of one stay together"),
        (["--group", "shop", "--time", "day"], "of 2 groups, whose newest rows have 1 different time; rows of one"),
    ],
)
def test_too_few_groups_or_times_are_named(options, cause, tmp_path, capsys):
    run_init(tmp_path, raw_table().assign(shop=np.arange(ROWS) % 2, day="2026-01-01"), *options, expect=1)
    assert cause in capsys.readouterr().err


def test_the_newest_rows_are_test(tmp_path):
    raw = raw_table().assign(day=pd.date_range("2026-01-01", periods=ROWS).strftime("%Y-%m-%d")).sample(frac=1)
    paths = run_init(tmp_path, raw, "--time", "day")
    days = [sorted(split(paths, name)["day"]) for name in SPLITS]
    train, val, test = days
    assert train[-1] < val[0] <= val[-1] < test[0]


def test_splits_of_the_user_stay_and_a_missing_one_is_taken_from_train(tmp_path):
    raw, folder = raw_table(), tmp_path / "raw"
    folder.mkdir()
    raw[:150].to_csv(folder / "train.csv", index=False)
    raw[150:].to_csv(folder / "my-test.csv", index=False)
    assert main(["init", str(folder), "--root", str(tmp_path / "job")]) == 0
    paths = JobPaths(tmp_path / "job")
    assert split(paths, "test")["ticket"].tolist() == raw["ticket"][150:].tolist()
    assert sorted([*split(paths, "train")["ticket"], *split(paths, "val")["ticket"]]) == raw["ticket"][:150].tolist()


def test_splits_whose_columns_have_other_types_are_one_table(tmp_path):
    raw, folder = raw_table().assign(age=lambda frame: np.arange(len(frame)) % 7), tmp_path / "raw"
    folder.mkdir()
    raw[:150].to_parquet(folder / "train.parquet")
    raw[150:].assign(age=lambda frame: frame["age"] + 0.5).to_parquet(folder / "test.parquet")
    assert main(["init", str(folder), "--root", str(tmp_path / "job")]) == 0
    assert set(pd.read_parquet(JobPaths(tmp_path / "job").channel("test"))["age"] % 1) == {0.5}


@pytest.mark.parametrize(
    ("name", "columns", "cause"),
    [
        ("test.csv", ["ticket", "review", "price"], "split test has no column 'outcome', the label"),
        ("more.csv", ["ticket", "review", "outcome"], "train.csv is train by its name, but more.csv is of no split"),
    ],
)
def test_a_file_beside_train_that_cannot_be_a_split_is_named(name, columns, cause, tmp_path, capsys):
    raw, folder = raw_table(), tmp_path / "raw"
    folder.mkdir()
    raw.to_csv(folder / "train.csv", index=False)
    raw[columns].to_csv(folder / name, index=False)
    assert main(["init", str(folder), "--root", str(tmp_path / "job"), "--label", "outcome"]) == 1
    assert cause in capsys.readouterr().err


@pytest.mark.parametrize("others", [{0: "kg"}, {i: f"{i},25" for i in range(0, ROWS, 2)}])
def test_numbers_that_no_notation_reads_are_no_id(others, tmp_path, capsys):
    cells = [others.get(i, f"{i}.25") for i in range(ROWS)]
    paths = run_init(tmp_path, raw_table().drop(columns="ticket").assign(cost=cells))
    assert "id_name" not in settings(paths)
    assert re.search(r"Warning: cost: .*so it is no number", capsys.readouterr().out)


def test_an_id_is_one_also_where_a_few_rows_are_in_the_table_twice(tmp_path):
    raw = raw_table()
    assert settings(run_init(tmp_path, pd.concat([raw, raw[:20]])))["id_name"] == "ticket"


def test_codes_of_whole_numbers_that_hardly_repeat_are_no_category(tmp_path):
    users = np.random.default_rng(0).permutation(10 * ROWS)[:ROWS] + 1_600_000_000
    assert settings(run_init(tmp_path, raw_table().assign(user=users)))["cat_field_list"] == ["colour"]


def test_groups_of_a_given_test_that_train_has_as_well_are_counted(tmp_path, capsys):
    raw, folder = raw_table().assign(shop=np.arange(ROWS) // 4), tmp_path / "raw"
    folder.mkdir()
    raw[:150].to_csv(folder / "train.csv", index=False)
    raw[142:].to_csv(folder / "test.csv", index=False)
    raw[8:16].to_csv(folder / "val.csv", index=False)
    assert main(["init", str(folder), "--root", str(tmp_path / "job"), "--group", "shop"]) == 0
    assert "test: 3 groups of shop that train has as well." in (printed := capsys.readouterr().out)
    assert "val: 2 groups of shop" in printed


def tickets(paths: JobPaths) -> dict[str, list[str]]:
    return {name: sorted(split(paths, name)["ticket"]) for name in SPLITS}


def test_rows_keep_their_split_by_their_id_when_columns_change(tmp_path):
    raw = raw_table()
    first = tickets(run_init(tmp_path, raw))
    cleaned = raw.assign(length=raw["review"].str.len(), review=raw["review"].str.upper())
    assert tickets(run_init(tmp_path, cleaned.sample(frac=1, random_state=0), "--force")) == first


def test_splits_of_an_earlier_job_are_repeated_by_its_id(tmp_path, capsys):
    raw = raw_table().assign(day=pd.date_range("2026-01-01", periods=ROWS).strftime("%Y-%m-%d"))
    first = run_init(tmp_path, raw, "--time", "day")
    (tmp_path / "new").mkdir()
    new = pd.concat([raw.iloc[2:198], raw_table(205).iloc[200:].assign(day="")]).sample(frac=1, random_state=0)
    paths = run_init(tmp_path / "new", new.drop(columns="day"), "--splits-of", str(first.root))
    before, found = tickets(first), tickets(paths)
    assert found["val"] == before["val"]
    assert found["test"] == before["test"][:-2]
    assert found["train"] == [*before["train"][2:], *(f"T-{i:04d}" for i in range(200, 205))]
    printed = capsys.readouterr().out
    assert f"5 labelled rows that {first.root} does not have: in train." in printed
    assert f"2 test rows of {first.root} are not in the table" in printed


def test_splits_of_an_earlier_job_without_an_id_are_repeated_by_the_number_of_the_row(tmp_path):
    raw = (
        raw_table()
        .drop(columns="ticket")
        .assign(review=lambda raw: [f"{text} {i}" for i, text in enumerate(raw["review"])])
    )
    first = run_init(tmp_path, raw)
    (tmp_path / "new").mkdir()
    new = raw.assign(review=raw["review"].str.upper(), colour="1" + raw["colour"])
    paths = run_init(tmp_path / "new", new, "--splits-of", str(first.root))
    for name in SPLITS:
        assert split(paths, name)["review"].tolist() == split(first, name)["review"].str.upper().tolist()


@pytest.mark.parametrize(
    ("change", "options", "cause"),
    [
        (
            lambda raw: raw.drop(columns="ticket").head(150),
            [],
            "the table has no column 'ticket', the id of the job, and",
        ),
        (
            lambda raw: raw.assign(ticket="N" + raw["ticket"]).head(150),
            [],
            "most of them are not in the table, and its",
        ),
        (lambda raw: raw, ["--time", "colour"], "--time and --splits-of: each would split the rows in another way"),
    ],
)
def test_a_table_that_does_not_fit_the_earlier_job_is_refused(change, options, cause, tmp_path, capsys):
    first = run_init(tmp_path, raw_table())
    (tmp_path / "new").mkdir()
    run_init(tmp_path / "new", change(raw_table()), "--splits-of", str(first.root), *options, expect=1)
    assert cause in capsys.readouterr().err
    run_init(tmp_path / "new", raw_table(), "--splits-of", str(tmp_path), expect=1)
    assert "has no splits.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["tsv", "parquet", "jsonl"])
def test_every_format_gives_the_settings_of_csv(suffix, tmp_path):
    raw, file = raw_table(), tmp_path / f"raw.{suffix}"
    write = {"tsv": lambda: raw.to_csv(file, sep="\t", index=False), "parquet": lambda: raw.to_parquet(file)}
    write.get(suffix, lambda: raw.to_json(file, orient="records", lines=True))()
    assert main(["init", str(file), "--root", str(tmp_path / "other")]) == 0
    assert settings(JobPaths(tmp_path / "other")) == settings(run_init(tmp_path, raw))


def with_labels(*labels: str, **given: Any) -> pd.DataFrame:
    return raw_table().assign(outcome=np.resize(labels, ROWS), **given)


def test_texts_for_no_value_are_no_labels_but_counted(tmp_path, capsys):
    paths = run_init(tmp_path, with_labels("yes", "no", "no", "NULL", "N/A", "?", " ", "no", "NaN", "yes"))
    assert settings(paths)["multiclass_categories"] == ["no", "yes"]
    assert sum(len(split(paths, name)) for name in SPLITS) == ROWS // 2
    printed = capsys.readouterr().out
    assert "100 of 200 rows have no label and are left out (empty 20, NULL 20, N/A 20, ? 20, NaN 20)." in printed
    assert '--map-label "NULL=NULL"' in printed


def test_map_label_writes_other_labels(tmp_path, capsys):
    raw = with_labels("yes", "Yes", "no", "n=o", "N/A", "maybe")
    changes = ["Yes=yes", "n=o=no", "N/A=N/A", "maybe="]
    paths = run_init(tmp_path, raw, "--map-label", *changes[:2], "--map-label", *changes[2:])
    assert settings(paths)["multiclass_categories"] == ["N/A", "no", "yes"]
    written = pd.concat([split(paths, name) for name in SPLITS]).set_index("ticket")["outcome"]
    new = {"Yes": "yes", "n=o": "no"}
    expected = raw[raw["outcome"] != "maybe"].set_index("ticket")["outcome"].replace(new)
    assert written.sort_index().to_dict() == expected.sort_index().to_dict()
    assert "33 of 200 rows have no label and are left out (maybe 33)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (["yess=no"], "'yess=no': column 'outcome' has no such label; the similar label 'yes' exists"),
        (["yes"], "'yes': column 'outcome' has no such label"),
        (["yes=a", "yes=b"], "label 'yes' has two new labels"),
        (["yes=no"], "only the label 'no'"),
        (["yes=NA", "yes=NA", "no=?", "no="], "label 'no' has two new labels"),
        (["yes="], "only the label 'no' (yes 100: no label)"),
    ],
)
def test_a_change_of_labels_that_does_not_fit_is_named(changes, cause, tmp_path, capsys):
    run_init(tmp_path, with_labels("yes", "no"), "--map-label", *changes, expect=1)
    assert cause in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        (["yes", "yes", "Yes", "no"], "differ only by case, blanks or accents: yes 100, Yes 50. To join: "
         '--map-label "Yes=yes".'),
        (["sí", "sí", "si", "no"], '--map-label "si=sí"'),
        (["yes", "yes", "yes\u200b", "no"], "differ only by case, blanks or accents: yes 100"),
        (["in arbeit", "in arbeit", "in  arbeit", "fertig"], '--map-label "in  arbeit=in arbeit"'),
        (["api", "ui", "api|ui", "ui|api"], "outcome: 100 rows have several labels, e.g. 'api|ui'. A model"),
        (["Sci/Tech", "World", "Sports/Games"], None),
        (["1,5", "2,5", "3,5"], None),
        (["none", "mild", "severe"], "'none' is read as a label. If it means no label: --map-label \"none=\""),
        (["+", "-"], None),
    ],
)  # fmt: skip
def test_labels_that_may_mean_something_else_are_named(labels, warning, tmp_path, capsys):
    run_init(tmp_path, with_labels(*labels))
    printed = capsys.readouterr().out
    assert not re.search("--map-label", printed) if warning is None else warning in printed


def test_spellings_of_a_category_are_named(tmp_path, capsys):
    table = with_labels("yes", "no", "yes")
    table["country"] = np.resize(["DE", "fr", "de", "De "], ROWS)
    run_init(tmp_path, table)
    assert "country: 1 value with several spellings: DE 50, de 50, De 50." in capsys.readouterr().out


def test_labels_are_in_their_order_in_every_list(tmp_path, capsys):
    paths = run_init(tmp_path, with_labels("b", "10", "9", "a"))
    assert settings(paths)["multiclass_categories"] == [9, 10, "a", "b"]
    assert "Labels of outcome: 9 25.0%, 10 25.0%, a 25.0%, b 25.0%." in capsys.readouterr().out
    rows = (paths.root / "init.md").read_text().partition("## Rows of each label")[2]
    assert re.findall(r"^\| (\w+) \| [0-9]", rows, re.MULTILINE) == ["9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        (lambda raw: raw.assign(won=raw["outcome"].map({"yes": "w", "no": "l"})), "won: predicts 100.0% of the labels"),
        (lambda raw: raw.assign(closed=("2026-01-" + (raw.index % 28 + 1).astype(str)).where(raw["outcome"] == "yes")),
         "closed: predicts 100.0% of the labels alone"),
        (lambda raw: raw.assign(paid=np.where(raw["outcome"] == "yes", "2026-03-0", "2026-02-0")
                                + (raw.index % 9 + 1).astype(str)), "paid: predicts 100.0% of the labels alone"),
        (lambda raw: raw.assign(note=raw["review"].where((raw["outcome"] == "yes") & (raw.index % 2 > 0))),
         "note: is filled only where the label is yes"),
        (lambda raw: raw.assign(fee=raw["price"].where((raw["outcome"] == "no") | (raw.index % 2 > 0))),
         "fee: is empty only where the label is yes"),
        (lambda raw: raw.assign(day="2026-01-01", done=np.where(raw["outcome"] == "yes", "2026-01-01", "2026-01-02")),
         "done: predicts"),
        (lambda raw: raw.assign(age=raw["price"].where(raw.index % 3 > 0)), None),
        (lambda raw: raw.assign(alley=np.where(raw.index % 20 > 0, "None", np.where(raw.index % 3, "Gr", "Pa"))), None),
        (lambda raw: raw.assign(outcome=raw["outcome"].where(raw.index > 2, "rare")), "the label rare (3)"),
        (lambda raw: raw.assign(outcome=raw["outcome"].where(raw.index > 2)), "3 of 200 rows have no label"),
        (lambda raw: raw.assign(customer_id=[f"C{i % 60}" for i in raw.index]), "--group customer_id"),
        (lambda raw: raw.assign(day="2026-01-" + (raw.index % 28 + 1).astype(str).str.zfill(2)), "--time day"),
        (lambda raw: raw.assign(review=raw["review"][:100].tolist() * 2), "texts of review: metrics of val"),
        (lambda raw: raw.assign(review=[text[:30] for text in (*raw["review"][:150], *raw["review"][:50])]), None),
        (
            lambda raw: raw.assign(price=raw["price"].where(raw.index > 1, "on request")),
            "price: of 200 cells, 2 cannot be read as a number, e.g. 'on request'",
        ),
        (
            lambda raw: raw.assign(day=("2026-01-" + (raw.index % 28 + 1).astype(str)).where(raw.index > 0, "soon")),
            "day: of 200 cells, 1 cannot be read as a date, e.g. 'soon', so it is no date (category: 29 values)",
        ),
        (with_its_label_in_the_text, "100% of the texts contain the name of their own label"),
    ],
)  # fmt: skip
def test_a_doubtful_table_gets_a_warning_with_numbers(changed, warning, tmp_path, capsys):
    run_init(tmp_path, changed(raw_table()))
    printed = capsys.readouterr().out
    others = re.sub("Warning: val has .*", "", printed)
    assert "Warning" not in others if warning is None else warning in printed


def test_two_columns_that_predict_the_label_together_are_named(tmp_path, capsys):
    rng, raw = np.random.default_rng(0), raw_table(800)
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, 800), "D")
    late = np.where(raw["outcome"] == "yes", rng.integers(31, 60, 800), rng.integers(0, 30, 800))
    left = rng.integers(0, 2, 800)
    raw = raw.assign(
        ordered=days.strftime("%Y-%m-%d"),
        returned=(days + pd.to_timedelta(late, "D")).strftime("%Y-%m-%d"),
        left=np.where(left, "a", "b"),
        right=np.where(left ^ (raw["outcome"] == "yes"), "c", "d"),
    )
    run_init(tmp_path, raw)
    printed = capsys.readouterr().out
    assert "left and right: together predict 100.0% of the labels" in printed
    assert "ordered and returned: together predict" in printed
    assert "--time" not in printed, "a column of a pair that leaks is no time of a record"


def test_the_report_has_the_warnings_of_init_but_not_of_columns_that_the_model_does_not_read(tmp_path, capsys):
    paths = run_init(tmp_path, raw_table().assign(won=lambda raw: raw["outcome"].map({"yes": "w", "no": "l"})))
    given = settings(paths)
    found = init_warnings(paths, parse_hyperparameters(given))
    assert [text[:10] for text in found] == ["val has 9 ", "won: predi"]
    found = init_warnings(paths, parse_hyperparameters({**given, "cat_field_list": ["colour"]}))
    assert len(found) == 1
    paths.init_record.write_text("{")
    assert init_warnings(paths, parse_hyperparameters(given)) == []
    assert "init.json: cannot be read" in "".join(capsys.readouterr())
    paths.init_record.unlink()
    assert init_warnings(paths, parse_hyperparameters(given)) == []


def test_few_rows_of_a_label_in_val_and_test_are_a_warning_with_the_width_of_the_interval(tmp_path, capsys):
    run_init(tmp_path, raw_table(400))
    message = "val has 19 rows with the rarest label no; test has 20 rows with the rarest label no. Around an AUROC"
    assert message in (printed := capsys.readouterr().out)
    assert "will be about 0.28 wide" in printed
    run_init(tmp_path, raw_table(800), "--force")
    assert "Warning" not in capsys.readouterr().out
    run_init(tmp_path, raw_table(400).assign(outcome=lambda raw: raw["outcome"].where(raw.index > 0, "new")), "--force")
    assert message in capsys.readouterr().out, "new has no row in val and test"


def test_a_column_whose_role_the_user_chose_gets_no_warning_of_its_cells(tmp_path, capsys):
    raw = raw_table()
    run_init(tmp_path, raw.assign(price=raw["price"].where(raw.index > 1, "on request")), "--ignore", "price")
    assert "on request" not in capsys.readouterr().out.partition("Warning")[2]


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        (lambda raw: raw.assign(outcome=np.arange(ROWS) + 0.5), "200 distinct numbers.*that is a regression"),
        (lambda raw: raw.assign(outcome="yes"), "only the label 'yes'"),
        (lambda raw: raw.head(1), "has one row with a label"),
        (lambda raw: raw.head(0), "has columns, but no rows"),
        (lambda raw: raw.head(2), "split (val|test) would have no row"),
        (lambda raw: raw.rename(columns={"price": "colour"}), "'colour' occurs twice"),
        (lambda raw: raw.rename(columns={"outcome": "result"}), "which column is the label"),
        (lambda raw: raw[["outcome"]].assign(constant=1), "no column is a text, a number, a category or a date"),
    ],
)
def test_a_table_of_which_no_model_can_be_trained_is_one_error(changed, cause, tmp_path, capsys):
    paths = run_init(tmp_path, changed(raw_table()), expect=1)
    message = capsys.readouterr().err
    assert re.search(cause, message)
    assert "Traceback" not in message
    assert not paths.channel("train").exists()


def test_the_share_of_missing_numbers_counts_their_words(tmp_path, capsys):
    run_init(tmp_path, raw_table().assign(age=["NA", "41", "42", "43"] * (ROWS // 4)))
    assert re.search(r"^age +number +25.0%", capsys.readouterr().out, re.MULTILINE)


def test_a_folder_with_a_job_is_refused_without_force(tmp_path, capsys):
    run_init(tmp_path, raw_table())
    run_init(tmp_path, raw_table(), expect=1)
    assert "has a job: input/data/train" in capsys.readouterr().err
    paths = run_init(tmp_path, raw_table(100), "--force")
    assert sum(len(split(paths, name)) for name in SPLITS) == 100


def test_a_table_in_the_folder_that_init_replaces_is_refused(tmp_path, capsys):
    paths = run_init(tmp_path, raw_table())
    assert main(["init", str(paths.channel("train")), "--root", str(paths.root), "--force"]) == 1
    assert "is in a folder that init replaces" in capsys.readouterr().err
    assert len(split(paths, "train")) == 160


@pytest.mark.slow
def test_a_table_that_pandas_saved_with_its_index_trains_without_a_change(tmp_path):
    raw = raw_table().drop(columns="ticket").rename_axis("").reset_index()
    paths = run_init(tmp_path, raw)
    found = settings(paths)
    assert "id_name" not in found
    few = {"cross_fit": 2, "cross_fit_repeats": 1}  # the preset would train 5 networks
    (paths.config / "hyperparameters.json").write_text(json.dumps({**found, **few}))
    run_train(paths)
    page = (paths.output_data / "report.html").read_text()
    assert "Of the raw table, init warned: val has " in page
    predictions = pd.read_parquet(paths.output_data / "val_predictions.parquet")
    assert predictions["row"].tolist() == list(range(20))
    every = pd.read_parquet(paths.output_data / "out_of_fold_predictions.parquet")
    assert every["row"].tolist() == [*range(len(every) - 20), *range(20)]
