"""Engines that run the processes of a job: this process alone, or Ray."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from zipfel.cli.job.worker import Answer, Order, Worker
from zipfel.data.formats.files import reason
from zipfel.errors import ConfigError, check_installed

Engine = Callable[[Callable[[], Worker], Iterable[Order]], Iterator[Answer]]

SECONDS = 5.0  # to reach an address
CONNECTING = 60.0  # seconds that a process has to connect to a Ray

_TRY = """
import sys, ray
try:
    ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
except Exception as error:
    print(str(error) or type(error).__name__)
    sys.exit(1)
"""


def local(make: Callable[[], Worker], orders: Iterable[Order]) -> Iterator[Answer]:
    """Answer orders one after the other, in this process."""
    return map(make(), orders)


class _Actor:
    """A worker as a row function of Ray Data, which knows rows of simple values only."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self.worker = make()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        number, part = orjson.loads(row["order"])
        return {"answer": orjson.dumps(self.worker((number, part)))}


@contextmanager
def _no_messages() -> Iterator[None]:
    """Drop what libraries in other languages write to standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def ray_engine(address: str | None, workers: int | None, device: str, threads: int | None) -> Iterator[Engine]:
    """Connect to Ray, or start it on this machine; yield the engine.

    address: None: RAY_ADDRESS, else a Ray of this process alone.  workers: None: as many as the CPUs or GPUs allow.
    """
    check_installed("--engine ray", "ray", "ray.data")
    import ray
    import ray.data

    with _connected(address):
        resources = ray.cluster_resources()
        gpu = device.startswith("cuda") or (device == "auto" and resources.get("GPU", 0) >= 1)
        cpus = threads or 1
        room = int(resources.get("GPU", 0) if gpu else resources.get("CPU", 0) // cpus)
        if room < 1:
            raise ConfigError(f"Ray has no {'GPU' if gpu else f'machine with {cpus} CPUs'} for a worker")
        needs = {"num_gpus": 1} if gpu else {"num_cpus": cpus}

        def run(make: Callable[[], Worker], orders: Iterable[Order]) -> Iterator[Answer]:
            items = [{"order": orjson.dumps([number, list(part)])} for number, part in orders]
            most = min(workers or room, len(items))
            pool = ray.data.ActorPoolStrategy(min_size=min(most, room), max_size=most)
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map(
                _Actor, fn_constructor_kwargs={"make": make}, compute=pool, **needs
            )
            try:
                for row in rows.iter_rows():
                    yield orjson.loads(row["answer"])
            except (ray.exceptions.RayError, RuntimeError) as error:
                raise ConfigError(f"Ray has lost a worker for good: {reason(error)}") from None

        yield run


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to Ray without its own messages and bars; disconnect at the end, unless the caller was connected."""
    import ray
    import ray.data

    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        if address:
            raise ConfigError(f"this process is connected to a Ray already; leave out the address {address}")
        yield
        return
    if address not in (None, "auto", "local"):
        _reach(address)
    if address not in (None, "local"):
        _try(address)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    try:
        alone = address in (None, "local")
        with _no_messages():
            ray.init("local" if alone else address, **({"include_dashboard": False} if alone else {}), **quiet)
    except Exception as error:  # of many types, also for an older server or another version of Python
        raise ConfigError(f"no Ray at {address or 'this machine'}: {reason(error)}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise ConfigError at once if nobody listens at an address, which Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"--address must be HOST:PORT, ray://HOST:PORT or auto; found {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray at {address}: {getattr(error, 'strerror', None) or error}") from None


def _try(address: str) -> None:
    """Connect to Ray in another process; raise ConfigError if that fails, or takes too long.

    Ray waits long for a half-started Ray, in code that nothing interrupts but the end of its process.
    """
    words = [sys.executable, "-c", _TRY, address]
    try:
        tried = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=CONNECTING, check=False)
    except subprocess.TimeoutExpired:
        problem = f"the port is open, but connecting took more than {CONNECTING:g} seconds"
        raise ConfigError(f"no Ray at {address}: {problem}; see `ray status` on this machine") from None
    if tried.returncode:
        said = tried.stdout.decode(errors="replace").strip() or f"connecting ended with code {tried.returncode}"
        raise ConfigError(f"no Ray at {address}: {reason(RuntimeError(said))}")
