"""The secret that the sidecars of one job share: given to all ranks by the user, never sent through the job's store."""

from __future__ import annotations

import hashlib
import hmac
import pathlib
from collections.abc import Mapping

from daf.errors import DafError

LEAST_CHARS = 16


def job_token(environ: Mapping[str, str]) -> str:
    """Return the token that `DAF_JOB_TOKEN` holds, or the file that `DAF_JOB_TOKEN_FILE` names; empty for none."""
    token, path = environ.get("DAF_JOB_TOKEN", "").strip(), environ.get("DAF_JOB_TOKEN_FILE", "")
    if not token and path:
        try:
            token = pathlib.Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DafError(f"DAF_JOB_TOKEN_FILE={path}: cannot be read: {error}") from None
    if token and (len(token) < LEAST_CHARS or not token.isascii() or not token.isprintable()):
        raise DafError(
            f"the job's token (DAF_JOB_TOKEN) has {len(token)} characters; it needs {LEAST_CHARS} or more of ASCII"
        )
    return token


def signature_of(token: str, *words: str) -> str:
    """Return what only who knows the token can have made of these words."""
    return hmac.new(token.encode(), "\0".join(words).encode(), hashlib.sha256).hexdigest()
