"""Learn the rule that tells codes from amounts among whole numbers, and write container/init/codes.json.

    python -m benchmarks.fit_code_rule [--check]

It learns on the train columns of benchmarks/roles.py whose values are whole numbers, and which people called numeric
or categorical. --check prints its accuracy on files that it was not learned on, by cross-validation, and writes
nothing.
"""

import argparse
import json
from typing import Any, cast

import numpy as np
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from benchmarks.roles import PublishedColumn, read_columns
from container.init.codes import FILE, CodeRule, facts_of_values, name_parts

FOLDS = 10
FEWEST_NAMES = 5  # columns whose name has a part
NAMELESS = 0.3  # weight of each column without its name, so that names in other languages do not decide
STRENGTH = 0.3  # C of the logistic regression over the parts of names


def main() -> None:
    """Learn the rule, or check how well it does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    columns, files, codes = labelled()
    if options.check:
        check(columns, files, codes)
        return
    rule = learn(columns, files, codes)
    content = {"weights": dict(rule.weights), "bias": rule.bias, "trees": list(rule.trees)}
    FILE.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n", "utf-8")
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, {len(rule.weights)} parts of names, {len(rule.trees)} trees")


def labelled() -> tuple[list[PublishedColumn], np.ndarray, np.ndarray]:
    """Return the columns of whole numbers, the file of each, and whether it has codes. [N]"""
    kinds = {"numeric": False, "categorical": True}
    found = [
        (facts, kinds[kind])
        for kind, facts in read_columns("train")
        if kind in kinds and facts.is_whole and facts.distinct > 1
    ]
    files = np.array([facts.published["Record_id"] for facts, _ in found])
    return [facts for facts, _ in found], files, np.array([code for _, code in found])


def learn(columns: list[PublishedColumn], files: np.ndarray, codes: np.ndarray) -> CodeRule:
    """Return the rule. The trees get scores of names by regressions on other files, as for a new file."""
    counter = CountVectorizer(analyzer=cast(Any, name_parts), min_df=FEWEST_NAMES, binary=True)
    parts = sparse.csr_matrix(counter.fit_transform(columns))
    linear = LogisticRegression(C=STRENGTH, max_iter=1000, fit_intercept=False)
    folds = list(GroupKFold(5).split(files, codes, files))
    scores = np.asarray(cross_val_predict(linear, parts, codes, cv=folds, method="decision_function"))
    linear.fit(parts, codes)
    values = np.array([facts_of_values(facts) for facts in columns])
    features = np.vstack([np.column_stack([values, scores]), np.column_stack([values, np.zeros(len(columns))])])
    weights = np.repeat([1.0, NAMELESS], len(columns))
    trees = HistGradientBoostingClassifier(max_iter=150, learning_rate=0.08, max_leaf_nodes=8, min_samples_leaf=20)
    trees.fit(features, np.tile(codes, 2), sample_weight=weights)
    names = zip(counter.get_feature_names_out().tolist(), linear.coef_[0].tolist(), strict=True)
    grown = [_node(predictors[0].nodes, 0) for predictors in trees._predictors]
    return CodeRule(
        {name: rounded for name, weight in names if (rounded := round(weight, 3))},
        round(float(trees._baseline_prediction[0, 0]), 4),
        grown,
    )


def _node(nodes: np.ndarray, index: int) -> Any:
    node = nodes[index]
    if node["is_leaf"]:
        return round(float(node["value"]), 4)
    below, above = (_node(nodes, node[side]) for side in ("left", "right"))
    return [int(node["feature_idx"]), round(float(node["num_threshold"]), 4), below, above]


def check(columns: list[PublishedColumn], files: np.ndarray, codes: np.ndarray) -> None:
    """Print the accuracy of rules on the files that each was not learned on, with and without the name."""
    with_name, without = np.zeros((2, len(columns)))
    for learned, held_out in GroupKFold(FOLDS).split(files, codes, files):
        rule = learn([columns[i] for i in learned], files[learned], codes[learned])
        nameless = CodeRule({}, rule.bias, rule.trees)
        with_name[held_out] = [rule.share(columns[i]) for i in held_out]
        without[held_out] = [nameless.share(columns[i]) for i in held_out]
    for what, shares in (("with the name", with_name), ("without it", without)):
        right = (shares > 0.5) == codes
        print(
            f"{what}: {right.mean():.4f} of {len(codes)} right; codes {right[codes].mean():.4f}, "
            f"amounts {right[~codes].mean():.4f}, precision of amounts {(~codes[shares <= 0.5]).mean():.4f}"
        )


if __name__ == "__main__":
    main()
