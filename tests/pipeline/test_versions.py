"""The table of registered versions."""

from pipeline.versions import Version, table


def version(number: int, *, data: str, metric: str = "test/auroc") -> Version:
    """A version that was made of the data with a key."""
    facts = {"training_rows": "210", "commit": "827280dabc", "data_key": data, "metric_value": "0.912345"}
    facts["metric_interval_95"] = "0.88 to 0.94"
    return Version(number, "2026-11-30T10:00:00", "Approved", "", metric, facts)


def test_keys_of_data_that_begin_alike_are_shown_apart_within_80_columns() -> None:
    found = [version(number, data=f"claims/2026-11-{day}") for number, day in ((12, 30), (11, 23))]
    lines = table(found, group="claims", in_service=12, service="claims").splitlines()
    assert [line.rsplit("  ", 1)[-1] for line in lines[1:3]] == ["…026-11-30", "…026-11-23"]
    assert max(map(len, lines)) <= 80


def test_the_column_is_named_by_the_metric_only_if_all_versions_have_it() -> None:
    first, other = version(1, data="a"), version(2, data="b", metric="test/f1_score")
    assert " auroc " in table([first], group="claims", in_service=None, service="claims")
    assert " metric " in table([first, other], group="claims", in_service=None, service="claims")
