"""Where the sidecar listens."""

from __future__ import annotations

import dataclasses
import socket
import stat

import pytest

from daf.errors import DafError
from daf.server import sidecar
from daf.server.settings import Settings
from daf.server.sidecar import listen, url_of


def is_reachable(sock: socket.socket) -> bool:
    with socket.socket(sock.family, socket.SOCK_STREAM) as client:
        sock.listen()
        client.settimeout(5)
        client.connect(sock.getsockname())
        return True


def test_it_listens_on_loopback_and_on_a_socket_that_only_its_owner_opens(settings: Settings) -> None:
    with listen(dataclasses.replace(settings, port=0)) as (tcp, unix):
        assert tcp.getsockname()[0] == "127.0.0.1"
        assert is_reachable(tcp)
        assert stat.S_IMODE(settings.socket_path.stat().st_mode) == 0o600
        assert unix.family == socket.AF_UNIX


def test_a_socket_s_path_may_be_longer_than_an_address_holds(settings: Settings) -> None:
    deep = settings.runtime_dir / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    with listen(dataclasses.replace(settings, runtime_dir=deep, port=0)):
        assert (deep / "sidecar.sock").is_socket()


def test_the_default_port_gives_way_and_one_that_was_asked_for_does_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = dataclasses.replace(settings, port=other.getsockname()[1])
        with pytest.raises(DafError, match=rf"cannot listen on 127\.0\.0\.1:{taken.port}: Address already in use"):
            listen(taken).__enter__()
        monkeypatch.setattr(sidecar, "DEFAULT_PORT", taken.port)
        with listen(taken) as (tcp, _unix):
            assert tcp.getsockname()[1] not in (0, taken.port)


def test_an_address_of_another_machine_is_named(settings: Settings) -> None:
    with pytest.raises(DafError, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        listen(dataclasses.replace(settings, host="192.0.2.1", port=0)).__enter__()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_loopback_is_loopback(settings: Settings) -> None:
    six = dataclasses.replace(settings, host="::1", port=0)
    assert not six.is_exposed
    with listen(six) as (tcp, _unix):
        assert url_of(six, tcp) == f"http://[::1]:{tcp.getsockname()[1]}"
        assert is_reachable(tcp)
