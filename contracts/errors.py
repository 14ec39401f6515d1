"""The error a user caused and can mend: a cause in their words, and what to change."""


class ContractError(ValueError):
    """Input that breaks the contract.

    Args:
        cause: what is wrong, in one line, naming the file, column, row or key and the value.
        fix: what to change, in one line.
    """

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause}\n{self.fix}" if self.fix else self.cause
