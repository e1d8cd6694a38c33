"""What schemathesis is told about our API: an event stream has no end unless one is asked for, and changes may wait."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    if context.operation.path == "/v1/stream":
        return {"seconds": 0.01, **(query or {})}
    wait = (query or {}).get("wait")
    if query and isinstance(wait, int | float) and 0 <= wait <= 30:
        return {**query, "wait": min(wait, 0.1)}
    return query
