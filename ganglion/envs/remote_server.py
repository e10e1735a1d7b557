"""The server that environments of other processes and machines connect to: protocol, handshake, who waits.

A message is four bytes (its length, little-endian), so many bytes of JSON (an object), and, where that has "bytes", so
many raw bytes after it. Nothing of a message is ever run. docs/remote.md is the protocol for those who write a client.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import math
import os
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ganglion.envs.gym_arrays import MASK, Array
from ganglion.errors import EnvError, UserError

log = logging.getLogger(__name__)

VERSION = 1
TOKEN = "GANGLION_ENV_TOKEN"  # the environment variable that holds the token
LONGEST = 1 << 16  # bytes of JSON
LARGEST = 1 << 28  # bytes of an observation
GREETING = 5.0  # seconds a client may take to say who it is
CROWD = 64  # handshakes at a time
TOLD = 10  # refusals that are warned about one by one
DTYPES = {"float32": np.float32, "uint8": np.uint8, "int64": np.int64}


class ClientError(EnvError):
    """A client is of no use any more. `kind`: lost, timeout or garbage."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def garbage(text: str) -> ClientError:
    return ClientError("garbage", text)


class Form(NamedTuple):
    """What an environment's observations and actions look like."""

    obs: spaces.Space[Any]
    action: spaces.Space[Any]
    masks: int  # how many actions the mask of each answer covers; 0: there is none


# ------------------------------------------------------------ messages


def pack(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """A message as it travels."""
    text = json.dumps({**message, "bytes": len(payload)} if payload else message).encode()
    return len(text).to_bytes(4, "little") + text + payload


class Client:
    """A connection, and what it says it plays."""

    def __init__(self, connection: socket.socket, where: str) -> None:
        self.connection, self.where = connection, where
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked = 0  # messages that were sent
        self.form: Form

    def send(self, message: dict[str, Any], timeout: float) -> None:
        """Asks for something; answers carry the same id."""
        self.asked += 1
        try:
            self.connection.settimeout(timeout)
            self.connection.sendall(pack({**message, "id": self.asked}))
        except TimeoutError as error:
            raise ClientError("timeout", f"{self.where} took nothing for {timeout:g} s") from error
        except OSError as error:
            raise ClientError("lost", f"the connection of {self.where} ended ({error})") from error

    def receive(self, timeout: float, largest: int) -> tuple[dict[str, Any], bytes]:
        """The next message; one that is no message at all is garbage."""
        until = monotonic() + timeout
        size = int.from_bytes(self._exactly(4, until, timeout), "little")
        if not 2 <= size <= LONGEST:
            raise garbage(f"{self.where} sent a message of {size} bytes of JSON; accepted are 2 to {LONGEST}")
        try:
            message = json.loads(self._exactly(size, until, timeout))
        except (ValueError, RecursionError) as error:
            raise garbage(f"{self.where} sent what is no JSON") from error
        if type(message) is not dict:
            raise garbage(f"{self.where} sent JSON that is no object")
        length = message.get("bytes", 0)
        if type(length) is not int or not 0 <= length <= largest:
            raise garbage(f"{self.where} sent {str(length)[:40]} raw bytes; accepted are 0 to {largest}")
        return message, self._exactly(length, until, timeout)

    def _exactly(self, size: int, until: float, timeout: float) -> bytes:
        parts = bytearray(size)
        view, got = memoryview(parts), 0
        try:
            while got < size:
                self.connection.settimeout(max(until - monotonic(), 1e-3))
                count = self.connection.recv_into(view[got:])
                if not count:
                    raise ClientError("lost", f"the connection of {self.where} ended")
                got += count
        except TimeoutError as error:
            raise ClientError("timeout", f"no answer from {self.where} within {timeout:g} s") from error
        except OSError as error:
            raise ClientError("lost", f"the connection of {self.where} ended ({error})") from error
        return bytes(parts)

    @property
    def silent(self) -> bool:
        """Whether it is still there and says nothing unasked."""
        try:
            return not select.select([self.connection], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self, farewell: dict[str, Any] | None = None) -> None:
        """Ends the connection; a farewell says why."""
        with suppress(OSError, ClientError):
            if farewell is not None:
                self.connection.settimeout(1.0)
                self.connection.sendall(pack(farewell))
        self.connection.close()


# ------------------------------------------------------------ spaces


def read_form(hello: dict[str, Any]) -> Form:
    """What a client's first message declares."""
    try:
        obs, action = read_space(hello["obs"], "obs"), read_space(hello["action"], "action")
    except KeyError as error:
        raise garbage(f"hello should have {error}") from error
    if type(obs) not in (spaces.Box, spaces.Dict):
        raise garbage("obs should be an array, or named parts that are arrays")
    if type(action) is spaces.Dict or (type(action) is spaces.Box and action.dtype != np.float32):
        raise garbage("action should have n, each, or a shape of float32")
    masks = hello.get("masks", False)
    if type(masks) is not bool or (masks and type(action) is not spaces.Discrete):
        raise garbage("masks should be true or false, and goes with an action that has n")
    return Form(obs, action, int(action.n) if masks and type(action) is spaces.Discrete else 0)


def read_space(plain: Any, name: str, inner: bool = False) -> spaces.Space[Any]:
    """{"n": 4}, {"each": [3, 2]}, {"shape": [4], "dtype": "float32", "low": -1, "high": 1}, or named parts of the
    last kind: {"parts": [["position", {...}], ...]}."""
    match plain:
        case {"parts": list(parts)} if not inner and 0 < len(parts) <= 64:
            named = [(part[0], read_space(part[1], name, True)) for part in map(read_part, parts)]
            if len(dict(named)) < len(named) or any(type(part) is not spaces.Box for _, part in named):
                raise garbage(f"{name}: parts should be arrays with different names")
            return spaces.Dict(named)
        case {"n": int(n)} if not inner and type(n) is int and 1 <= n <= 1 << 20:
            return spaces.Discrete(n)
        case {"each": list(each)} if not inner and 0 < len(each) <= 4096 and all(map(counts, each)):
            return spaces.MultiDiscrete(each)
        case {"shape": list(shape)}:
            return read_box(plain, shape, name)
    raise garbage(f"{name}: {str(plain)[:80]} is no space")


def read_part(part: Any) -> tuple[str, Any]:
    match part:
        case [str(name), inner] if 0 < len(name) <= 64 and name.isprintable() and name != MASK:
            return name, inner
    raise garbage("parts should be pairs of a name and a space")


def counts(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1 << 20


def read_box(plain: dict[str, Any], shape: list[Any], name: str) -> spaces.Box:
    dtype = plain.get("dtype", "float32")
    if len(shape) > 4 or not all(map(counts, shape)) or dtype not in DTYPES:
        raise garbage(f"{name}: a shape has at most 4 sizes from 1 up, its dtype is one of {', '.join(DTYPES)}")
    kind: Any = DTYPES[dtype]
    if math.prod(shape) * np.dtype(kind).itemsize > LARGEST:
        raise garbage(f"{name}: {shape} is larger than {LARGEST} bytes")
    least, most = (-np.inf, np.inf) if dtype == "float32" else (np.iinfo(kind).min, np.iinfo(kind).max)
    try:
        low, high = (
            np.broadcast_to(np.asarray(plain.get(key, whole), kind), shape).copy()
            for key, whole in (("low", least), ("high", most))
        )
        return spaces.Box(low, high, tuple(shape), kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise garbage(f"{name}: low and high should be numbers, or lists of the shape") from error


def size_of(space: spaces.Space[Any]) -> int:
    """Bytes of an observation."""
    return sum(math.prod(box.shape) * box.dtype.itemsize for box in boxes(space))


def boxes(space: spaces.Space[Any]) -> list[Any]:
    return list(space.spaces.values()) if type(space) is spaces.Dict else [space]


def read_obs(space: spaces.Space[Any], payload: bytes) -> Any:
    """The arrays of an observation: one after the other, little-endian."""
    found: list[Array] = []
    start = 0
    for box in boxes(space):
        count = math.prod(box.shape)
        array = np.frombuffer(payload, box.dtype.newbyteorder("<"), count, start)
        found.append(array.astype(box.dtype).reshape(box.shape))
        start += array.nbytes
    return dict(zip(space.spaces, found, strict=True)) if type(space) is spaces.Dict else found[0]


# ------------------------------------------------------------ the server


def loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False


class EnvServer:
    """Listens at an address; clients that have said hello wait until a slot takes them."""

    def __init__(self, host: str, port: int) -> None:
        self.token = os.environ.get(TOKEN, "")
        if not self.token and not loopback(host):
            raise UserError(
                f"env.host: {host} can be reached from other machines, and there is no token. "
                f"Set the environment variable {TOKEN} here and for each client."
            )
        try:
            self.listener = socket.create_server((host, port), backlog=CROWD)
        except OSError as error:
            raise UserError(f"env.port: cannot listen at {host}:{port} ({error.strerror or error})") from error
        self.host, self.port = host, self.listener.getsockname()[1]
        self.form: Form | None = None  # of the first client; others need the same
        self.waiting: deque[Client] = deque()
        self.news = threading.Condition()
        self.refused = self.users = 0
        self.open = True
        self.greeting = threading.BoundedSemaphore(CROWD)
        threading.Thread(target=self._accept, name="env-server", daemon=True).start()

    def _accept(self) -> None:
        while self.open:
            try:
                connection, address = self.listener.accept()
            except OSError:
                return
            if not self.greeting.acquire(blocking=False):
                connection.close()
                self._refuse(f"{address[0]} came while {CROWD} others were saying hello")
                continue
            threading.Thread(target=self._greet, args=(connection, address), daemon=True).start()

    def _greet(self, connection: socket.socket, address: Any) -> None:
        client = Client(connection, f"{address[0]}:{address[1]}")
        try:
            hello, _ = client.receive(GREETING, 0)
            self._check(hello, client)
        except ClientError as error:
            client.close({"refused": str(error)})
            self._refuse(str(error))
        except Exception as error:  # whatever a stranger sends, the server goes on
            client.close({"refused": "hello could not be read"})
            self._refuse(f"the hello of {client.where} could not be read ({type(error).__name__})")
        finally:
            self.greeting.release()

    def _check(self, hello: dict[str, Any], client: Client) -> None:
        if hello.get("hello") != "ganglion-env" or hello.get("version") != VERSION:
            raise garbage(f'{client.where}: a client begins with {{"hello": "ganglion-env", "version": {VERSION}}}')
        if self.token and not hmac.compare_digest(self.token.encode(), str(hello.get("token", "")).encode()):
            raise garbage(f"{client.where}: the token is missing or wrong")
        client.form = read_form(hello)
        with self.news:
            self.form = self.form or client.form
            if client.form != self.form:
                raise garbage(f"{client.where}: its spaces are not those of the first client")
            client.connection.sendall(pack({"welcome": VERSION}))
            self.waiting.append(client)
            self.news.notify_all()

    def _refuse(self, why: str) -> None:
        with self.news:
            self.refused += 1
            count = self.refused
        if count <= TOLD:
            log.warning("env: refused a client: %s%s", why, "; further ones are only counted" if count == TOLD else "")

    def take(self, until: float) -> Client | None:
        """A client that waits, the first to come; None if there was none in time."""
        with self.news:
            while True:
                while self.waiting:
                    client = self.waiting.popleft()
                    if client.silent:
                        return client
                    client.close()  # it died while it waited
                left = until - monotonic()
                if left <= 0 or not self.open:
                    return None
                self.news.wait(min(left, 1.0))

    def close(self) -> None:
        self.open = False
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.news:
            for client in self.waiting:
                client.close({"do": "close"})
            self.waiting.clear()


_servers: dict[tuple[str, int], EnvServer] = {}


def server_at(host: str, port: int) -> EnvServer:
    """The server of an address: training and evaluation share it. Port 0: any that is free, a server of its own."""
    server = _servers.get((host, port))
    if server is None:
        server = EnvServer(host, port)
        _servers[host, server.port] = server
    server.users += 1
    return server


def leave(server: EnvServer) -> None:
    """Closes it once nobody uses it."""
    server.users -= 1
    if not server.users:
        server.close()
        _servers.pop((server.host, server.port), None)
