"""`Refused`: a request that is answered by one sentence, in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A request that gets no text.

    Args:
        status: 4xx for what the request caused, 5xx for what the machine caused.
        sentence: what was given, what is wrong with it, what to do.
        field: of the request, where one is to blame.
        code: a word for programs.
        allowed: the methods that would be right.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        field: str | None = None,
        code: str | None = None,
        allowed: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.field, self.code, self.allowed = status, field, code, allowed

    @property
    def content(self) -> dict[str, Any]:
        """OpenAI's object of an error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}
