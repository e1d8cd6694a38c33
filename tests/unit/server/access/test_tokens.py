from __future__ import annotations

import os
import pathlib
import threading

import pytest

from daf.server.access.tokens import CODE_SECONDS, SESSION_SECONDS, Keyring, load_or_create, read_token


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    token = load_or_create(path)
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create(path) == token
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
def test_a_token_that_others_could_read_or_write_is_replaced(tmp_path: pathlib.Path, mode: int) -> None:
    path = tmp_path / "token"
    token = load_or_create(path)
    path.chmod(mode)
    assert read_token(path) is None
    assert load_or_create(path) != token


def test_a_link_in_the_token_s_place_is_not_followed(tmp_path: pathlib.Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("x" * 43)
    theirs.chmod(0o600)
    path = tmp_path / "token"
    path.symlink_to(theirs)
    assert load_or_create(path) != "x" * 43
    assert theirs.read_text() == "x" * 43


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_token_of_another_user_is_not_ours(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    load_or_create(path)
    os.chown(path, 12345, 12345)
    assert read_token(path) is None


@pytest.mark.parametrize("found_there", ["", "foreign"])
def test_of_many_makers_all_have_the_same_token(tmp_path: pathlib.Path, found_there: str) -> None:
    if found_there:
        (tmp_path / "token").write_text(found_there)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(load_or_create(tmp_path / "token"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_codes_and_sessions_end_by_the_clock() -> None:
    now = 0.0
    keyring = Keyring("t" * 43, clock=lambda: now)
    late, used = keyring.new_code(), keyring.new_code()
    key = keyring.redeem(used)
    assert key is not None
    assert keyring.who(key) == "session"
    assert keyring.who("t" * 43) == "token"
    assert keyring.who("") is None
    now = CODE_SECONDS + 1
    assert keyring.redeem(late) is None
    now = SESSION_SECONDS + 1
    assert keyring.who(key) is None


def test_no_number_of_codes_fills_the_memory() -> None:
    keyring = Keyring("t" * 43)
    first = keyring.new_code()
    for _ in range(1000):
        keyring.new_code()
    assert keyring.redeem(first) is None, "the oldest gave way"
