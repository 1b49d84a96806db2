"""What a request is refused with, in the form of each protocol."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

from torch_foundry.engine import QueueFull
from torch_foundry.serving.engine_thread import Closing

LOG = logging.getLogger("torch_foundry.serving")
RETRY_AFTER = 1  # seconds: about what an answer takes to leave its place
# by status: OpenAI's type, Anthropic's type
TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("request_too_large", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}


class ApiError(Exception):
    """A refusal: status, message, and the field that is to blame (None: no single one)."""

    def __init__(self, status: int, message: str, param: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        return {"retry-after": str(RETRY_AFTER)} if self.status in (429, 503) else {}

    def body(self, path: str, request_id: str) -> dict[str, Any]:
        """The JSON of the response, as clients of the protocol at `path` read it."""
        ours, anthropics = TYPES.get(self.status, TYPES[500])
        if path.startswith("/v1/messages"):
            return {
                "type": "error",
                "error": {"type": anthropics, "message": self.message},
                "request_id": request_id,
            }
        return {"error": {"message": self.message, "type": ours, "param": self.param, "code": self.code}}


def api_error(error: BaseException) -> ApiError:
    """What to answer when `error` was raised. Messages of ours name the field; of others only the type is told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, Closing):
        return ApiError(503, str(error), code="closing")
    if isinstance(error, ValueError):
        field, colon, _ = str(error).partition(":")
        return ApiError(400, str(error), field if colon and field.isidentifier() else None)
    return ApiError(500, f"internal error: {type(error).__name__}: see the server's log by the request's id")


def log_fault(id: str, error: BaseException) -> None:
    """Log where what went wrong in a request began, and its type: its message may have parts of a prompt."""
    while error.__cause__ is not None:
        error = error.__cause__
    where = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-8:]]
    LOG.error("%s", json.dumps({"id": id, "error": type(error).__name__, "where": where}))
