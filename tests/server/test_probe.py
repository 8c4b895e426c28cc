"""The health check of the image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zipfel.server.probe import address_of, main

pytestmark = pytest.mark.usefixtures("one_thread")
TLS = Path(__file__).parent / "tls"


def test_the_address_comes_from_the_options():
    start = ["/opt/zipfel/bin/python", "/opt/zipfel/bin/zipfel", "serve", "--host", "0.0.0.0", "/models/light"]
    assert address_of(start) == (8000, False, None)
    assert address_of([*start, "--port", "9000", "--workers", "2"]) == (9000, False, None)
    assert address_of([*start, "--port=9000", "--tls-cert", "a.pem", "--tls-key=a.key"]) == (9000, True, None)
    assert address_of([*start, "--unix-socket", "/run/z"]) == (8000, False, "/run/z")


@pytest.mark.parametrize("kind", ["port", "tls", "unix"])
def test_it_says_whether_the_service_is_ready(listening, tmp_path, kind):
    tls = {"tls_cert": TLS / "first.pem", "tls_key": TLS / "first.key"} if kind == "tls" else {}
    server = listening(**tls, unix_socket=tmp_path / "s" if kind == "unix" else None)
    words = [
        "zipfel",
        "serve",
        *(["--unix-socket", str(tmp_path / "s")] if kind == "unix" else ["--port", str(server.port)]),
    ]
    file = tmp_path / "cmdline"
    file.write_bytes("\0".join([*words, *(["--tls-cert", "x"] if tls else []), ""]).encode())
    assert main(file) == 0
    server.service.ready = False
    assert main(file) == 1
    server.stop()
    assert main(file) == 1


def test_it_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from zipfel.server import probe; print(sorted({'torch', 'numpy', 'fastapi'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
