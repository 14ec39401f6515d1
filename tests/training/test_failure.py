from container.failure import Failure, root_cause
from contracts.errors import ContractError


def test_the_root_cause_is_not_the_peer_that_lost_its_connection():
    echo = Failure("RuntimeError: Connection closed by peer", rank=0, echo=True, at=1.0)
    killed = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1, at=2.0)
    assert root_cause([echo, killed]) is killed
    assert "rank 1 (pid 7) was ended by SIGKILL" in killed.text().splitlines()[0]


def test_a_failure_text_starts_with_the_cause_then_says_what_to_change():
    try:
        raise ContractError("text_name: missing", "Set text_name.")
    except ContractError as error:
        lines = Failure.from_exception(error, rank=3).text().splitlines()
    assert lines[:2] == ["text_name: missing [rank 3]", "What to change: Set text_name."]
    assert "Traceback" in lines[3]
