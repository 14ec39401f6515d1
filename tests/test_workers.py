"""The environment of a job's workers."""

from container.workers import _waiting


def test_waiting_threads_follow_the_policy_of_the_user() -> None:
    assert "GOMP_SPINCOUNT" in _waiting({})
    assert _waiting({"OMP_WAIT_POLICY": "PASSIVE"}) == {}, "the number would replace the policy"
