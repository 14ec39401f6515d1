"""The companion: what is fitted on train, and that its graph computes it for any batch."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from container.companion import fit as module
from container.companion import graph, nodes, parts, trees
from container.companion.bag import token_counts
from container.companion.fit import FEWEST_ROWS
from container.data.records import RecordArrays, onnx_inputs
from container.decision.softmax import softmax
from container.errors import NotMade
from container.evaluation.metrics import classification_metrics
from container.results.companion import out_of_fold
from testing.companions import FIELD, fitted, rows, text, without_meaning


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Fit the boosted trees alone, except where a test sets WIDE_ROWS again: the other parts take seconds."""
    monkeypatch.setattr(module, "WIDE_ROWS", 0)


def predict(found, part: RecordArrays, positions=None):
    """Logits [N, K] and scores [N, S]."""
    positions = range(len(part.row)) if positions is None else positions
    return found.companion(onnx_inputs([FIELD], part.take(np.array(positions))))


def auroc(part: RecordArrays, logits: np.ndarray) -> float:
    value = classification_metrics(part.label, softmax(logits), ["auroc"]).values["auroc"]
    assert value is not None
    return value


@pytest.mark.parametrize("classes", [2, 3])
def test_the_companion_is_better_than_the_text_and_the_table_alone(classes):
    found, val = fitted(rows(600, classes=classes), classes=classes), rows(400, classes=classes, seed=1)
    logits, scores = predict(found, val)
    parts = found.text_logits(scores), found.table_logits(val.tabular)
    assert auroc(val, logits) > max(auroc(val, part) for part in parts) > min(auroc(val, part) for part in parts) > 0.6
    assert np.allclose(np.exp(logits).sum(axis=1), 1, atol=1e-5)


def test_texts_that_say_nothing_about_the_label_are_left_out_of_the_trees():
    train, val = without_meaning(rows(600)), without_meaning(rows(100, seed=1))
    found = fitted(train)
    assert not found.uses_texts
    assert fitted(rows(600)).uses_texts
    assert "text" in out_of_fold(fitted(rows(600))).source
    assert "text" not in out_of_fold(found).source
    assert found.parts.num_columns == val.tabular.shape[1]


SECOND = replace(FIELD, role="secondary", input_ids_key="secondary_ids", attention_mask_key="secondary_mask")


@pytest.mark.parametrize("decides", [0, 1])
def test_the_trees_read_the_number_of_tokens_of_each_text(decides):
    def of_lengths(part: RecordArrays) -> RecordArrays:
        """Rows without numbers and terms, of whose texts one is longer in class 1."""
        ids = itertools.count(5)  # each token occurs once, in a chunk of its own
        lengths = np.random.default_rng(0).integers(1, 30, (len(part.row), 2))
        lengths[:, decides] += 30 * part.label
        texts = tuple(text([[[next(ids)] for _ in range(length)] for length in column]) for column in lengths.T)
        return replace(part, tabular=np.zeros((len(part.row), 0), np.float32), texts=texts)

    fields, val = (FIELD, SECOND), of_lengths(rows(100, seed=1))
    logits, scores = fitted(of_lengths(rows(600)), fields=fields).companion(onnx_inputs(fields, val))
    assert (np.ptp(scores, axis=0) == 0).all()
    assert auroc(val, logits) > 0.99


@pytest.mark.parametrize("classes", [2, 3])
def test_a_record_has_the_same_bits_alone_and_beside_longer_records(classes):
    found, val = fitted(rows(200, classes=classes), classes=classes), rows(60, classes=classes, seed=1)
    together, scores = predict(found, val)
    for i in range(60):
        alone, score = predict(found, val, [i])
        np.testing.assert_array_equal(score[0], scores[i])
        np.testing.assert_allclose(alone[0], together[i], atol=1e-6)  # a sum over trees, after the last threshold


@pytest.fixture
def built(monkeypatch):
    """What the companion that is fitted next is built from, by the parameter of build_companion."""
    kept, build = {}, module.build_companion

    def keep(fields, bags, linear, parts, **rest):
        kept.update(bags=bags, linear=linear, parts=parts)
        return build(fields, bags, linear, parts, **rest)

    monkeypatch.setattr(module, "build_companion", keep)
    return kept


def linear_scores(built, part: RecordArrays) -> np.ndarray:
    return built["linear"].scores([built["bags"][0].transform(part.texts[0])])


@pytest.mark.parametrize("number", [200, 600])  # 600 values are more than the trees have bins
def test_the_graph_computes_the_linear_scores_and_the_trees_that_were_fitted(number, built):
    found, val = fitted(rows(number, classes=3), classes=3), rows(60, classes=3, seed=1)
    logits, scores = predict(found, val)
    np.testing.assert_allclose(scores, linear_scores(built, val), atol=2e-3)  # 16-bit weights
    computed = softmax(built["parts"].logits(np.hstack([val.tabular, scores, token_counts([val])])))
    np.testing.assert_allclose(np.exp(logits), computed, atol=1e-5)


def test_records_whose_terms_are_in_nearly_all_records_or_in_none_have_the_scores_of_the_linear_model(built):
    placeholder, varied = [[2, 30, 31, 3]], [[2, 40, 41, 42, 3]]
    records = [placeholder if i % 60 else [[2, 40 + i // 120, 3]] for i in range(600)]  # a varied text occurs twice
    train = replace(rows(600), texts=(text(records),))
    found, val = fitted(train), replace(rows(3), texts=(text([placeholder, varied, [[99]]]),))
    scores = predict(found, val)[1]
    np.testing.assert_allclose(scores, linear_scores(built, val), atol=2e-3)
    assert scores[2] == pytest.approx(built["linear"].bias)
    assert np.ptp(scores) > 0.01


def with_double_leaves(*arguments, trees=nodes.Graph.trees, **options):
    name = trees(*arguments, **options)
    leaves = next(part.floats for part in arguments[0].nodes[-1].attribute if part.name == "class_weights")
    leaves[:] = [2 * value for value in leaves]
    return name


@pytest.mark.parametrize(
    ("replaced", "what"),
    [((graph, "MULTIPLIER", 7), "text scores"), ((nodes.Graph, "trees", with_double_leaves), "probabilities")],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_graph_that_computes_something_else_than_the_fitted_models_is_not_used(replaced, what, classes, monkeypatch):
    monkeypatch.setattr(*replaced)
    with pytest.raises(NotMade, match=rf"its graph computes other {what} than the fitted model for \d+% of 256 rows"):
        fitted(rows(400, classes=classes), classes=classes)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(9) // 2,
        np.random.default_rng(0).normal(size=999),
        np.array([-3.4e38, 0, 1e-45, 3.4e38], np.float32),
        np.array([1, 1 + 2**-23], np.float32),
        np.zeros(5),
    ],
)
def test_a_value_is_at_most_the_value_of_a_boundary_exactly_if_its_bin_is(values):
    features = values.astype(np.float32)[:, None]
    bins = trees.Bins.fit(features)
    found = bins(features)[:, 0]
    assert len(np.unique(found)) <= 255
    for boundary in range(len(bins.thresholds[0])):
        limit = np.float32(bins.value_of(0, boundary + 0.5))
        assert ((features[:, 0] <= limit) == (found <= boundary + 0.5)).all()


def test_weights_of_rows_need_no_sort_for_each_percentile(monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    monkeypatch.setattr("sklearn.ensemble._hist_gradient_boosting.binning._weighted_percentile", fail)
    module.fit_companion([rows(600)], [FIELD], class_weights=[1.0, 5.0], seed=0)


def test_tokens_beyond_those_of_train_and_chunks_of_one_token_are_no_error():
    found = fitted(rows(100))
    logits, scores = predict(found, replace(rows(2), texts=(text([[[10_000_000]], [[7], [8]]]),)))
    assert np.isfinite(logits).all()
    assert np.isfinite(scores).all()


def test_the_same_rows_give_the_same_bytes_with_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(trees, "_MOST_ROUNDS", 5)
    made = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            made.append(fitted(rows(150, classes=3), classes=3).companion.graph.SerializeToString(deterministic=True))
    assert made[0] == made[1]


def test_another_seed_gives_another_companion():
    graphs = [fitted(rows(100), seed=seed).companion.graph.SerializeToString() for seed in (0, 1)]
    assert graphs[0] != graphs[1]


def test_a_rare_class_gets_its_share_of_the_rows():
    labels = np.repeat([0, 1, 2], [100, 97, 3])
    found = fitted(rows(200, classes=3, labels=labels), classes=4)
    logits, scores = predict(found, rows(20, classes=3, seed=1))
    assert np.allclose(np.exp(logits[:, 2]), 3.5 / 202, rtol=1e-5)
    assert np.allclose(np.exp(logits[:, 3]), 0.5 / 202, rtol=1e-5)  # no row at all
    assert found.text_logits(scores).shape == (20, 4)
    assert found.parts.held_out.shape == (197, 2)


@pytest.mark.parametrize("columns", [0, 1])
def test_a_table_of_few_columns_or_none_is_enough(columns):
    found, val = fitted(rows(300, columns=columns)), rows(200, columns=columns, seed=1)
    assert (found.table is None) == (columns == 0)
    assert auroc(val, predict(found, val)[0]) > 0.6


def test_constant_columns_and_empty_texts_are_no_error():
    train = rows(100)
    nothing = replace(train, tabular=np.ones_like(train.tabular), texts=(text([[[2, 3]]] * 100),))
    logits, scores = predict(fitted(nothing), nothing)
    assert len(np.unique(scores)) == 1
    shares = np.bincount(train.label) / 100
    np.testing.assert_allclose(np.exp(logits), np.tile(shares, (100, 1)), atol=0.01)


def test_classes_of_few_rows_have_their_shares_and_the_others_what_is_left():
    labels = np.concatenate([np.repeat([0, 1], 100), np.repeat(np.arange(2, 22), FEWEST_ROWS - 1)])  # half of the rows
    found, val = fitted(rows(len(labels), labels=labels), classes=22), rows(50, seed=1)
    logits, scores = predict(found, val)
    for probabilities in map(np.exp, (logits, found.text_logits(scores), found.table_logits(val.tabular))):
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(probabilities[:, 2:], (FEWEST_ROWS - 1) / len(labels), rtol=0.05)


def test_a_class_in_one_group_has_its_share_because_the_other_folds_know_nothing_of_it():
    train = rows(120, classes=3)
    train = replace(train, group=np.where(train.label == 2, 1000, train.row))
    probabilities = np.exp(predict(fitted(train, classes=3), train)[0])
    np.testing.assert_allclose(probabilities[:, 2], (train.label == 2).mean(), rtol=0.05)


def test_numbers_at_the_limit_of_32_bits_are_no_error():
    train = rows(100)
    train.tabular[::7] = np.float32(3.4028235e38)
    train.tabular[::5] = np.float32(-3.4028235e38)
    assert np.isfinite(predict(fitted(train), train)[0]).all()


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.repeat([0, 1], [90, FEWEST_ROWS - 1]), "fewer than two classes have 10 training rows"),
        (np.repeat(np.arange(51), 10), "51 classes are more than 50"),
    ],
)
def test_too_few_rows_and_too_many_classes_are_reasons_to_step_aside(labels, reason):
    with pytest.raises(NotMade, match=reason):
        fitted(rows(len(labels), labels=labels), classes=51)


def test_a_large_train_is_sampled_by_a_hash_of_the_row(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 80)
    first, again, other = (fitted(rows(200), seed=seed).rows for seed in (0, 0, 1))
    assert len(first) == 80
    assert (first == again).all()
    assert set(first) != set(other)
    assert np.ptp(first) > 150


@pytest.mark.parametrize("classes", [2, 3])
def test_a_sample_has_the_rows_of_rare_classes_and_gives_each_class_the_probability_of_its_share(classes, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 800)
    numbers = np.arange(4000)
    labels = np.where(numbers % 100 == 0, classes - 1, numbers % (classes - 1))  # the last class has 40 rows
    train = rows(4000, classes=classes, labels=labels)
    found = fitted(train, classes=classes)
    assert len(found.rows) == 800
    assert (labels[found.rows] == classes - 1).sum() == 40
    probabilities = np.exp(predict(found, train)[0]).mean(axis=0)
    np.testing.assert_allclose(probabilities, np.bincount(labels) / 4000, rtol=0.5)  # 5 % of the sample are of it


@pytest.mark.parametrize(("combine", "leaves"), [(False, trees.LEAVES[0]), (True, trees.LEAVES[1])])
def test_trees_are_large_if_the_label_depends_on_combinations_of_columns(combine, leaves):
    random = np.random.default_rng(0)
    features = random.normal(size=(1500, 8)).astype(np.float32)
    signs = np.sign(features)
    score = 2 * signs[:, 0] * signs[:, 1] * signs[:, 2] if combine else features.sum(axis=1)
    labels = (score + random.logistic(size=1500) > 0).astype(int)
    found = trees.fit_trees(features, labels, weights=np.ones(1500), folds=np.arange(1500) % 5, seed=0)
    assert found.held_out.leaves == leaves


def test_many_classes_take_fewer_rounds_with_a_higher_learning_rate():
    assert trees.schedule(100_000, num_features=13, num_classes=5) == (500, 0.05)
    assert trees.schedule(100_000, num_features=58, num_classes=50) == (20, 0.2)
    assert 20 * 58 * 50 < 500 * 13 * 5 * 2  # the time of a fit


def test_the_sample_is_smaller_where_even_the_fewest_rounds_take_long(monkeypatch):
    monkeypatch.setattr(trees, "_MOST_VALUES", 20 * (2 + 3 + 1) * 3 * 90)  # 20 rounds of 3 trees on 90 rows
    found = fitted(rows(200, classes=3), classes=3)
    assert len(found.rows) == 90
    assert found.trees.held_out.rounds <= 20


def test_the_sample_has_a_limited_number_of_tokens(monkeypatch):
    train = rows(200)
    monkeypatch.setattr(module, "MOST_TOKENS", len(train.texts[0].tokens) // 2)
    sampled = fitted(train).rows
    assert np.diff(train.texts[0].token_offsets)[sampled].sum() <= len(train.texts[0].tokens) // 2
    assert 50 < len(sampled) < 150


def test_rows_outside_the_sample_are_not_read(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 80)
    train, read = rows(200), []
    transform = module.TokenBag.transform
    monkeypatch.setattr(module.TokenBag, "transform", lambda bag, text: read.append(text) or transform(bag, text))
    found = fitted(train)
    assert sum(len(text.token_offsets) - 1 for text in read) == len(found.rows) == 80


def test_taken_records_are_those_records():
    train = rows(50)
    for chosen in ([3, 4, 40], [49], [7, 7, 0]):
        taken = train.take(np.array(chosen))
        inputs = onnx_inputs([FIELD], taken)
        expected = onnx_inputs([FIELD], RecordArrays.gathered([train] * len(chosen), chosen))
        assert all((inputs[name] == expected[name]).all() for name in expected)
        assert taken.row.tolist() == train.row[chosen].tolist()


def test_a_class_weight_moves_the_companion_as_it_moves_the_loss():
    train, val = rows(400), rows(200, seed=1)
    plain = fitted(train)
    weighted = module.fit_companion([train], [FIELD], class_weights=[1.0, 5.0], seed=0)
    difference = predict(weighted, val)[0] - predict(plain, val)[0]
    assert np.median(difference[:, 1] - difference[:, 0]) == pytest.approx(np.log(5), abs=0.7)


def test_rows_of_weight_0_are_not_read():
    train = rows(400)
    train.weight[40:] = 0
    assert fitted(train).rows.max() < 40


@pytest.fixture(scope="module", params=[2, 3])
def wide(request):
    """A companion of all parts, its training rows and rows of val."""
    classes = request.param
    train, val = rows(400, classes=classes), rows(200, classes=classes, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WIDE_ROWS", 2_000)
        patch.setattr(module, "choose_parts", all_parts)
        return fitted(train, classes=classes), val


def all_parts(candidates, labels, *, weights, num_columns):
    factors = dict(zip(candidates, (0.3, 0.5, 0.2, 0.4, 0.6), strict=True))
    return parts.ChosenParts(candidates, factors, num_columns)


def test_with_few_rows_other_models_over_the_same_columns_are_fitted(wide):
    assert list(wide[0].parts.parts) == [
        "boosted trees",
        "random forest",
        "extra trees",
        "linear",
        "linear over the texts",
    ]


def test_the_graph_sums_the_logits_of_the_parts(wide):
    found, val = wide
    logits, scores = predict(found, val)
    expected = softmax(found.parts.logits(np.hstack([val.tabular, scores, token_counts([val])])))
    np.testing.assert_allclose(np.exp(logits), expected, atol=1e-5)


def test_held_out_logits_of_each_part_are_those_of_models_that_did_not_see_the_row(wide):
    found, _ = wide
    train = rows(400, classes=len(found.classes))
    columns = np.hstack([train.tabular, predict(found, train)[1], token_counts([train])])
    for name, part in found.parts.parts.items():
        held_out, seen = (auroc(train, logits) for logits in (part.held_out_logits, part.logits(columns)))
        assert 0.6 < held_out < seen, name


def test_a_part_that_repeats_another_is_left_out_and_one_that_knows_something_else_is_kept():
    labels = np.random.default_rng(0).integers(0, 3, 600)
    random = np.random.default_rng(1)

    def part(strength: float) -> SimpleNamespace:
        logits = random.normal(size=(600, 3))
        logits[np.arange(600), labels] += strength
        return SimpleNamespace(held_out_logits=logits)

    best, other, noise = part(2), part(1), part(0)
    candidates = {"noise": noise, "copy": best, "best": best, "other": other}
    found = parts.choose_parts(candidates, labels, weights=np.ones(600), num_columns=1)
    assert list(found.parts) == ["best", "other"]
    assert found.factors["best"] > found.factors["other"] > 0.3
