"""Hosts, tokens, origins, prefixes and TLS."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.server.conftest import received
from zipfel.errors import ConfigError, DataError
from zipfel.server.access import Hosts, Tokens
from zipfel.server.answers import Problem
from zipfel.server.connection import Crowd, client_of
from zipfel.server.settings import ServeSettings

pytestmark = pytest.mark.usefixtures("one_thread")
TLS = Path(__file__).parent / "tls"


def allowed(header: str, **settings: object) -> bool:
    try:
        Hosts.of(ServeSettings(**settings)).check(header.encode())
    except Problem:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_only_names_of_loopback_and_addresses_are_allowed(host):
    for header in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "localhost.", ""):
        assert allowed(header, host=host), header
    for header in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8000",
        "[evil]",
        "evil.localhost",
        "[::1].evil.example",
    ):
        assert not allowed(header, host=host), header


def test_named_hosts_are_allowed_and_on_other_addresses_all_are():
    assert allowed("anything.example", host="0.0.0.0")
    assert allowed("anything.example", unix_socket=Path("s"))
    named = {"host": "0.0.0.0", "allowed_hosts": ("Tags.example.org", "*.example.com")}
    for header in ("tags.example.org:443", "a.b.example.com", "TAGS.EXAMPLE.ORG", "10.0.0.1:80", "localhost"):
        assert allowed(header, **named), header
    for header in ("example.org", "x.tags.example.org", "example.com", "badexample.com"):
        assert not allowed(header, **named), header
    assert allowed("evil.example", allowed_hosts=("*",))


def test_a_request_for_another_host_is_refused(serving):
    client = serving("glas", allowed_hosts=())
    answer = client.tag(["paper"])  # the client's host is "test"
    assert answer.status_code == 421
    assert answer.json()["error"].startswith("host 'test' is not allowed; the server's option --allowed-hosts")
    assert client.ask("GET", "/health").status_code == 200


def test_a_second_host_is_refused_on_every_route(serving):
    client = serving("glas")
    for path in ("/models", "/health"):
        answer = client.ask("GET", path, headers=[("Host", "test"), ("Host", "evil.example")])
        assert (answer.status_code, answer.json()) == (400, {"error": "a request must have one header Host; found 2"})


def test_tokens_have_names_and_are_read_again(serving, tmp_path, capfd):
    file = tmp_path / "tokens"
    file.write_text("# who may\nalice s3cret\n\nbob other\n")
    client = serving("glas")
    client.gate.tokens = Tokens.of(file)

    def status(authorization: str) -> int:
        return client.ask("GET", "/models", headers={"Authorization": authorization}).status_code

    accepted = ["Bearer s3cret", "bearer other", "BEARER  other"]
    refused = ["Bearer alice", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret other"]
    assert [status(value) for value in accepted] == [200] * 3
    assert [status(value) for value in refused] == [401] * 6
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.get("token") for line in lines] == ["alice", "bob", "bob", *[None] * 6]
    assert {line["client"] for line in lines if line["status"] == 401} == {"127.0.0.1"}
    file.write_text("bob newer\n")
    client.gate.tokens.read_again()
    assert [status(f"Bearer {token}") for token in ("s3cret", "other", "newer")] == [401, 401, 200]
    file.write_text("bob two words\n")
    with pytest.raises(DataError, match="tokens:1: expected NAME TOKEN; found 3 words"):
        client.gate.tokens.read_again()
    assert status("Bearer newer") == 200


def test_a_token_comes_from_the_environment_without_a_file(monkeypatch):
    monkeypatch.setenv("ZIPFEL_TOKEN", "one")
    assert Tokens.of(None).name_of(b"Bearer one") == "default"
    monkeypatch.setenv("ZIPFEL_TOKEN", "")
    with pytest.raises(ConfigError, match="not empty"):
        Tokens.of(None)
    monkeypatch.delenv("ZIPFEL_TOKEN")
    assert not Tokens.of(None)


def test_other_origins_are_refused_unless_named(serving):
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    closed = serving("glas", token="s3cret")
    assert "access-control-allow-origin" not in closed.ask("OPTIONS", "/tag", headers=asked).headers
    client = serving("glas", token="s3cret", cors_origins=("https://app.example",))
    answer = client.ask("OPTIONS", "/tag", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
    other = client.ask("OPTIONS", "/tag", headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    refused = client.ask("GET", "/models", headers={"Origin": "https://app.example"})  # the page may read why
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://app.example")


@pytest.mark.parametrize("prefix", ["/tags", ""])  # some proxies remove the root path, others do not
def test_the_service_works_under_a_root_path(serving, prefix, capfd):
    client = serving("glas", root_path="/tags")
    assert client.ask("POST", f"{prefix}/tag", json={"texts": ["paper"]}).status_code == 200
    assert json.loads(capfd.readouterr().err)["path"] == "/tag"
    assert client.ask("GET", f"{prefix}/labels/printer").status_code == 200
    assert client.ask("GET", f"{prefix}/page/page.js").status_code == 200
    assert "href='openapi.json'" in client.ask("GET", f"{prefix}/docs").text
    assert client.ask("GET", f"{prefix}/openapi.json").json()["servers"] == [{"url": "/tags"}]
    assert 'route="/labels/{name}",status="200"} 1' in client.service.metrics()
    redirect = client.ask("GET", "/tags")  # without it, the page would look for its files beside /tags
    assert (redirect.status_code, redirect.headers["location"]) == (308, "/tags/")
    assert client.ask("GET", "/tagsy").status_code == 404


def test_wrong_settings_of_access_are_refused(tmp_path):
    for wrong, message in (
        ({"root_path": "tags"}, "root_path must begin with /"),
        ({"root_path": "/tags/"}, "root_path must begin with /"),
        ({"tls_cert": tmp_path}, "tls_cert and tls_key must be given together"),
        ({"trusted_proxies": ("proxy.example",)}, "trusted_proxies must be IP addresses or networks"),
        ({"drain": -1.0}, "drain must"),
        ({"timeout": 0.0}, "timeout must"),
    ):
        with pytest.raises(ConfigError, match=message):
            ServeSettings(**wrong)


def asked_with_tls(server, certificate: Path) -> tuple[bytes, str]:
    context = ssl.create_default_context(cafile=str(certificate))
    with server.connect() as plain, context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        names = sock.getpeercert()["subject"]
        return received(sock), names[0][0][1]


def test_tls_is_served_and_a_new_certificate_is_read(listening, tmp_path):
    for kind in ("pem", "key"):
        (tmp_path / kind).write_bytes((TLS / f"first.{kind}").read_bytes())
    server = listening(tls_cert=tmp_path / "pem", tls_key=tmp_path / "key")
    answer, name = asked_with_tls(server, TLS / "first.pem")
    assert (answer[:15], name) == (b"HTTP/1.1 200 OK", "first.test")
    for kind in ("pem", "key"):
        (tmp_path / kind).write_bytes((TLS / f"second.{kind}").read_bytes())
    server.server._read_certificate()
    assert asked_with_tls(server, TLS / "second.pem")[1] == "second.test"
    (tmp_path / "pem").write_bytes((TLS / "first.pem").read_bytes())  # half of a renewal: the key is still the old one
    with pytest.raises(ConfigError, match="cannot use the certificate"):
        server.server._read_certificate()
    assert asked_with_tls(server, TLS / "second.pem")[1] == "second.test"


def test_a_certificate_that_cannot_be_used_is_one_line(models, zipfel_command):
    pairs = (("first.pem", "second.key"), ("none.pem", "first.key"), ("first.pem", "locked.key"))
    for certificate, key in ((TLS / first, TLS / second) for first, second in pairs):
        outcome = zipfel_command("serve", models / "glas", "--port", "0", "--tls-cert", certificate, "--tls-key", key)
        assert outcome.code == 2
        assert f"error: cannot use the certificate {certificate} with the key {key}" in outcome.err
        assert len(outcome.err.splitlines()) == 1


def test_the_client_is_the_one_that_a_trusted_proxy_names(listening, capfd):
    request = (
        b"GET /models HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 6.6.6.6, 10.1.1.1\r\nConnection: close\r\n\r\n"
    )
    for proxies, client in (((), "127.0.0.1"), (("127.0.0.1", "10.0.0.0/8"), "6.6.6.6"), (("127.0.0.1",), "10.1.1.1")):
        server = listening(trusted_proxies=proxies)
        server.ask(request)
        server.stop()
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
        assert [line["client"] for line in lines if line["event"] == "request"] == [client]


@pytest.mark.parametrize(
    ("address", "expected"), [("::ffff:10.1.1.1", "10.1.1.1"), ("10.1.1.1", "10.1.1.1"), ("::ffff:a", "::ffff:a")]
)
def test_an_ipv4_client_of_a_socket_for_ipv6_is_known_by_its_ipv4_address(address, expected):
    peer = SimpleNamespace(getpeername=lambda: (address, 5, 0, 0))
    client = client_of(SimpleNamespace(get_extra_info=lambda name: peer))
    assert client == (expected, 5)
    assert Crowd(ServeSettings(trusted_proxies=("10.0.0.0/8",))).is_trusted(client[0]) == (expected == "10.1.1.1")
