"""One comparison of what an earlier result depends on with what this run has."""

from pathlib import Path

import pytest

from contracts.errors import ContractError
from contracts.fingerprint import Fingerprint


def test_the_digest_depends_on_the_values_and_not_on_their_order():
    first, second = Fingerprint.of({"a": 1, "b": (2,)}), Fingerprint.of({"b": [2], "a": 1})
    assert first.digest(8) == second.digest(8) != Fingerprint.of({"a": 1, "b": [3]}).digest(8)


def test_the_error_shows_the_first_change_and_names_the_others():
    current = Fingerprint.of({"path": Path("p"), "lr": 0.5, "new": 1})
    current.check({"path": "p", "lr": 0.5, "new": 1}, began="", fix="")
    with pytest.raises(ContractError) as changed:
        current.check({"path": "p", "lr": 0.1, "gone": 2}, began="the search began with", fix="Undo it.")
    assert changed.value.cause == "lr: the search began with 0.1, this run has 0.5 (also changed: new, gone)"
    assert changed.value.fix == "Undo it."
