"""A stand-in for the Hugging Face Hub on loopback: the endpoints that `huggingface_hub` uses to push and pull a model.

It keeps repositories in memory, stores files named *.safetensors as LFS files, checks tokens, and notes what it
was asked. `cut` makes it close the connection in the middle of a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.stand_in import Server

TOKENS = {"hf_writer": "tester", "hf_reader": None}  # token -> the account that it may write for


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # sha -> files
    messages: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes], message: str) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[sha] = files
        self.messages.append(message)
        return sha


class StandIn(Server):
    """The server; `with StandIn() as hub: hub.address`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, bytes] = {}  # LFS objects by SHA-256
        self.cut: str | None = None  # a file whose download breaks off in the middle, and which is gone then
        self.damaged: str | None = None  # a file that arrives with another first byte
        self.asked: list[str] = []
        super().__init__(_Handler, hub=self)


class RefusedError(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


ROUTES: list[tuple[str, str, str]] = [
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/main", "preupload"),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "store"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/main", "commit"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)", "tree"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+?)(/revision/(?P<revision>[^/]+))?", "info"),
    ("(GET|HEAD)", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
]


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for method, pattern, name in ROUTES:
                if re.fullmatch(method, self.command) and (found := re.fullmatch(pattern, path)):
                    return getattr(self, name)(**{key: value for key, value in found.groupdict().items() if value})
            raise RefusedError(404)
        except RefusedError as refused:
            headers = {"X-Error-Code": refused.code} if refused.code else {}
            self.answer({"error": refused.message or refused.code}, refused.status, headers)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def answer(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    # --- Who asks -----------------------------------------------------------------------------------------------------

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def read(self, repo: str) -> Repository:
        """Return a repository; one that is missing looks like one that is private."""
        if self.token and self.token not in TOKENS:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        known = self.hub.repositories.get(repo)
        if known is None or (known.private and TOKENS.get(self.token) != repo.split("/")[0]):
            raise RefusedError(404 if self.token else 401, "RepoNotFound", "Repository not found")
        return known

    def check_writes(self, account: str) -> None:
        if self.token not in TOKENS:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        if TOKENS[self.token] != account:
            raise RefusedError(403, "", "You don't have the rights to create a model under this namespace")

    def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
        known = self.read(repo)
        sha = known.head if revision == "main" else revision
        if sha not in known.commits:
            raise RefusedError(404, "RevisionNotFound", "Invalid rev id")
        return sha, known.commits[sha]

    # --- Endpoints ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        asked = json.loads(self.body)
        account = asked.get("organization") or TOKENS.get(self.token) or ""
        self.check_writes(account)
        repo = f"{account}/{asked['name']}"
        url = f"{self.hub.address}/{repo}"
        if repo in self.hub.repositories:
            self.answer({"error": "You already created this model repo", "url": url}, 409)
            return
        private = bool(asked.get("private") or asked.get("visibility") == "private")
        self.hub.repositories[repo] = Repository(private, {"0" * 40: {".gitattributes": b"*.safetensors"}})
        self.answer({"url": url, "name": repo})

    def validate(self) -> None:
        parts = json.loads(self.body)["content"].split("---\n")
        matter = parts[1] if len(parts) > 1 else "{}"
        try:
            problems = [] if isinstance(yaml.safe_load(matter), dict) else [{"message": "not a mapping"}]
        except yaml.YAMLError as error:
            problems = [{"message": str(error)}]
        self.answer({"errors": problems, "warnings": []}, 400 if problems else 200)

    def preupload(self, repo: str) -> None:
        self.check_writes(repo.split("/")[0])
        kinds = {True: "lfs", False: "regular"}
        files = [
            {"path": f["path"], "uploadMode": kinds[f["path"].endswith(".safetensors")], "shouldIgnore": False}
            for f in json.loads(self.body)["files"]
        ]
        self.answer({"files": files})

    def batch(self, repo: str) -> None:
        self.check_writes(repo.split("/")[0])
        objects = [
            {**asked, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{asked['oid']}", "header": {}}}}
            for asked in json.loads(self.body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.stored[oid] = self.body
        self.answer({})

    def commit(self, repo: str) -> None:
        self.check_writes(repo.split("/")[0])
        known, message = self.hub.repositories[repo], ""
        files = dict(known.files)
        for line in map(json.loads, self.body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = known.commit(files, message)
        self.answer({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.address}/{repo}/commit/{sha}"})

    def info(self, repo: str, revision: str = "main") -> None:
        sha, files = self.files(repo, revision)
        about = {"_id": "1", "id": repo, "private": self.read(repo).private, "tags": [], "downloads": 0, "likes": 0}
        self.answer({**about, "modelId": repo, "sha": sha, "siblings": [{"rfilename": name} for name in files]})

    def tree(self, repo: str, revision: str) -> None:
        _, files = self.files(repo, revision)
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in files.items()
        ]
        self.answer(entries)

    def resolve(self, repo: str, revision: str, path: str) -> None:
        sha, files = self.files(repo, revision)
        if path not in files:
            raise RefusedError(404, "EntryNotFound", "Entry not found")
        content = files[path]
        if path == self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": sha}
        if self.hub.cut == path and self.command == "GET":
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            del files[path]
        else:
            self.answer(content, 200, headers)
