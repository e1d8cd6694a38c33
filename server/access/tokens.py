"""Who may change things: a bearer token in a file that only its owner reads, and one-time codes for the browser.

A browser gets no cookie. Cookies ignore ports: whatever else listens on 127.0.0.1, another user's server too,
would be sent ours. A one-time code in the link's fragment is traded for a session key instead, which the page keeps
in `sessionStorage` (bound to scheme, host and port) and sends as a bearer token. No credential travels by itself, so
there is nothing for a forged request to ride on. Session keys live in the sidecar's memory and die with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import pathlib
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

TOKEN_CHARACTERS = 43  # 32 random bytes in base64url
CODE_SECONDS = 12 * 3600.0
SESSION_SECONDS = 24 * 3600.0
MAX_ENTRIES = 256


def load_or_create(path: pathlib.Path) -> str:
    """Return the token in `path`, making a new one where there is none that only we could have written."""
    token = read_token(path)
    if token is not None:
        return token
    with _alone_in(path.parent):  # of many makers one replaces what is there, and the rest read what it wrote
        token = read_token(path)
        if token is None:
            path.unlink(missing_ok=True)
            _create(path)
            token = read_token(path)
    if token is None:
        raise PermissionError(f"{path} cannot be made a token file of ours")
    return token


@contextlib.contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_token(path: pathlib.Path) -> str | None:
    """Return the token in `path`, or None where it is missing, not ours, readable by others, or malformed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return None
        text = file.read(256).strip().decode("ascii", "replace")
    return text if len(text) == TOKEN_CHARACTERS else None


def _create(path: pathlib.Path) -> None:
    # Written under another name and linked into place: a reader never sees half a token.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        os.link(draft, path)
    finally:
        draft.unlink()


class Keyring:
    """The token, the open one-time codes and the browser sessions. Holds digests, compares in constant time."""

    def __init__(self, token: str, job_token: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._token = _digest(token)
        self._job_token = _digest(job_token) if job_token else b""
        self._clock = clock
        self._codes: OrderedDict[bytes, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, float] = OrderedDict()

    def who(self, credential: str) -> str | None:
        """Return who holds `credential`: "token", "job" (its other sidecars), "session", or None for nobody we know."""
        digest = _digest(credential)
        if hmac.compare_digest(digest, self._token):
            return "token"
        if hmac.compare_digest(digest, self._job_token):
            return "job"
        expires = self._sessions.get(digest)
        return "session" if expires is not None and expires > self._clock() else None

    def new_code(self) -> str:
        return self._issue(self._codes, CODE_SECONDS)

    def redeem(self, code: str) -> str | None:
        """Trade a one-time code for a session key; None where the code is unknown, used or too old."""
        expires = self._codes.pop(_digest(code), None)
        if expires is None or expires <= self._clock():
            return None
        return self._issue(self._sessions, SESSION_SECONDS)

    def _issue(self, table: OrderedDict[bytes, float], seconds: float) -> str:
        secret = secrets.token_urlsafe(32)
        table[_digest(secret)] = self._clock() + seconds
        while len(table) > MAX_ENTRIES:
            table.popitem(last=False)
        return secret


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
