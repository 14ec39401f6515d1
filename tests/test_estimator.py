"""TextTableClassifier is an estimator of scikit-learn over init and train."""

import pickle
import subprocess

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from container.estimator import TextTableClassifier
from contracts.errors import ContractError

TINY = {"model_class": "tabular", "draft": True, "max_epochs": 10, "companion": False}
# Checks of scikit-learn that end before a job begins.
WITHOUT_TRAINING = (
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
    "check_no_attributes_set_in_init", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
    "check_estimators_unfitted", "check_complex_data", "check_estimators_empty_data_messages",
    "check_estimator_sparse_tag", "check_estimator_sparse_array", "check_estimator_sparse_matrix",
    "check_classifiers_one_label", "check_supervised_y_no_nan", "check_fit2d_1sample",
    "check_non_transformer_estimators_n_iter", "check_classifiers_regression_target",
    "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params", "check_fit1d",
    "check_requires_y_none", "check_estimators_partial_fit_n_features",
)  # fmt: skip
# Checks whose tables are no job.
NOT_APPLICABLE = {
    "check_array_api_input": "arrays of other libraries",
    "check_classifiers_one_label_sample_weights": "weights are a column: weight_name",
    "check_fit2d_predict1d": "ten rows of random numbers, which need three splits with both labels",
    "check_fit2d_1feature": "as above",
    "check_fit_check_is_fitted": "as above",
}


def checks():
    found = estimator_checks_generator(TextTableClassifier(verbose=False, settings=TINY), legacy=True)
    return [(estimator, check, check.func.__name__) for estimator, check in found]


@pytest.mark.parametrize("name", WITHOUT_TRAINING)
def test_a_check_of_scikit_learn_without_training_passes(name):
    for estimator, check, of_check in checks():
        if of_check == name:
            check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({name for *_, name in checks()} - {*WITHOUT_TRAINING, *NOT_APPLICABLE}))
def test_a_check_of_scikit_learn_that_trains_passes(name):
    for estimator, check, of_check in checks():
        if of_check == name:
            check(estimator)


def records(rows=300):
    rng = np.random.default_rng(0)
    price = rng.normal(size=rows)
    late = price + rng.normal(scale=0.3, size=rows) > 0
    note = [f"it {'came late' if value else 'was in time'}, order {i}" for i, value in enumerate(late)]
    return pd.DataFrame({"note": note, "price": price}, index=[7] * rows), late


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": "refunded"}, "X has no column 'refunded', only note, price"),
        ({}, "X has no column None"),
        ({"y": np.zeros(300)}, "only one class is present: \\[0.0\\]"),
        ({"y": [0, 1]}, "inconsistent numbers of samples"),
        ({"y": np.zeros((300, 2))}, "y: has the shape"),
        (
            {"X": records()[0].note, "y": records()[1]},
            "X: is a Series of one dimension\nPass a table, e.g. pd.DataFrame",
        ),
    ],
)
def test_labels_that_fit_no_table_are_refused_before_a_job_begins(given, message):
    table, _ = records()
    with pytest.raises(ValueError, match=message):
        TextTableClassifier().fit(**{"X": table, **given})


def test_a_job_that_cannot_be_made_raises_what_init_says():
    table, late = records()
    with pytest.raises(ContractError, match="init ended with exit code 1\nthe table has no column 'missing'"):
        TextTableClassifier(verbose=False, settings={"text": ["missing"]}).fit(table, late)


def test_a_mistake_in_the_settings_has_its_cause_and_no_traceback():
    table, late = records()
    with pytest.raises(ContractError, match="max_epoch: unknown hyperparameter") as raised:
        TextTableClassifier(verbose=False, settings={"max_epoch": 2}).fit(table, late)
    assert "Traceback" not in str(raised.value)


def test_an_interrupted_fit_leaves_no_training_in_its_folder(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    class Started(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            started.append(self)

    started, (table, late) = [], records()
    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr("builtins.print", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TextTableClassifier(root=tmp_path).fit(table, late)
    assert [process.poll() is None for process in started] == [False]


@pytest.fixture(scope="module")
def fitted():
    table, late = records()
    return TextTableClassifier(verbose=False, settings={"draft": True}).fit(table, late, max_epochs=2)


@pytest.mark.slow
def test_labels_have_the_type_of_y_and_the_index_of_x_has_no_meaning(fitted):
    table, late = records()
    assert fitted.classes_.tolist() == [False, True]
    assert fitted.predict(table).dtype == late.dtype
    assert fitted.score(table, late) > 0.9
    assert (fitted.predict_proba(table)[:, 1] > 0.5).mean() == pytest.approx(late.mean(), abs=0.1)


@pytest.mark.slow
def test_a_changed_table_and_further_columns_do_not_change_a_fitted_model(fitted):
    table, _ = records()
    before = fitted.predict_proba(table)
    assert np.array_equal(fitted.predict_proba(table.assign(other=1)[["other", "price", "note"]]), before)
    with pytest.raises(ContractError, match="price"):
        fitted.predict(table[["note"]])
    table["price"] = 0.0
    assert not np.array_equal(fitted.predict_proba(table), before)


@pytest.mark.slow
def test_a_model_is_saved_loaded_pickled_shown_and_explained(fitted, tmp_path):
    table, _ = records()
    loaded = TextTableClassifier.load(fitted.save(tmp_path / "saved"))
    first = pickle.loads(pickle.dumps(fitted))
    pickled, folder = pickle.dumps(first), first.root_
    del first
    assert not folder.exists()
    for copy in (loaded, pickle.loads(pickled)):
        assert np.array_equal(copy.predict(table), fitted.predict(table))
    assert "<iframe srcdoc=" in fitted._repr_html_()
    assert fitted.report_.is_file()
    assert {part["part"] for part in fitted.explain(table[:1])[0]["contributions"]} == {"note", "price"}
    assert not hasattr(clone(fitted), "classes_")


@pytest.mark.slow
def test_the_column_of_the_weights_is_no_input_of_the_model():
    table, late = records()
    settings = {**TINY, "max_epochs": 1, "ignore": "note", "weight_name": "weight"}
    model = TextTableClassifier(verbose=False, settings=settings).fit(table.assign(weight=np.arange(300) % 3), late)
    assert "test/weighted/auroc" in model.metrics_
    assert model.predict(table).shape == (300,)


@pytest.mark.long
def test_cross_validation_and_pipelines_work():
    table, late = records()
    model = TextTableClassifier(verbose=False, settings={"draft": True, "max_epochs": 5, "companion": False})
    pipeline = Pipeline([("same", FunctionTransformer()), ("model", model)])
    assert cross_val_score(pipeline, table, late, cv=2).mean() > 0.7
