"""Define the exceptions of the container.

```
Exception
  ContractError          what a user did and can correct; in contracts/errors.py
    AnotherJobError      another job is running in the folder
    RecordTooLongError   a record has more tokens than the Predictor accepts
    RequestError         an HTTP status; in serving/errors.py, where SageMaker's toolkit can be its second base
  DeadlineError          a request was not computed in time
    ClientGone           its client has closed the connection
  NotMade                an optional result is not made, for a reason that is no failure
  PeerFailed             another rank failed
  StopAgreed             all ranks stop at the same step
BaseException            interrupts any phase: `except Exception` does not catch it
  FailedElsewhere        another host, or the training of one of several networks, failed; in failure.py
  Stopped                SIGTERM or Ctrl-C; in contracts/program.py
```
"""

from contracts.errors import ContractError


class AnotherJobError(ContractError):
    """Another job is running in the folder."""


class RecordTooLongError(ContractError):
    """A record with more tokens than Predictor.load's `max_tokens`."""


class DeadlineError(Exception):
    """SERVING_TIMEOUT_SECONDS passed. Not a TimeoutError: a package's own inference.py may raise that."""


class ClientGone(DeadlineError):
    """The client closed the connection, so that nobody waits for the response."""


class NotMade(Exception):
    """An optional result is not made: companion, ONNX variant or explanation. The message is the reason."""


class PeerFailed(RuntimeError):
    """Another rank failed in a collective operation; the message names the rank and the cause."""


class StopAgreed(Exception):
    """All ranks agreed to stop here."""
