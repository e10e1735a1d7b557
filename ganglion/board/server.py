"""Serves the board on the loopback interface alone: only GET, only to pages of its own, only files it has listed."""

from __future__ import annotations

import json
import os
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ganglion.analysis.report import page
from ganglion.board.view import VIDEOS, Chosen, Runs, parts
from ganglion.errors import UserError

HOST, CHUNK, LONGEST = "127.0.0.1", 1 << 20, 4_000
SCRIPT = """
const state = {metric: '', word: '', hidden: []}, last = {};
const at = id => document.getElementById(id);
function fill(data) {
  const choice = at('metric');
  if (last.metrics !== data.metrics.join()) {
    last.metrics = data.metrics.join();
    choice.replaceChildren(...data.metrics.map(name => new Option(name, name)));
  }
  choice.value = data.metric;
  const key = data.groups.join('\\n') + '|' + state.hidden.join('\\n');
  if (last.groups !== key) {
    last.groups = key;
    at('groups').replaceChildren(...data.groups.map(name => {
      const label = document.createElement('label'), box = document.createElement('input');
      box.type = 'checkbox'; box.checked = !state.hidden.includes(name);
      box.onchange = () => { state.hidden = state.hidden.filter(x => x !== name);
        if (!box.checked) state.hidden.push(name); refresh(); };
      label.append(box, ' ' + name); return label;
    }));
  }
  for (const [name, html] of Object.entries(data.parts))
    if (last[name] !== html) { last[name] = html; at(name).innerHTML = html; }
}
async function refresh() {
  try {
    const query = new URLSearchParams({metric: state.metric, word: state.word});
    state.hidden.forEach(name => query.append('hidden', name));
    const answer = await fetch('/view?' + query);
    if (!answer.ok) throw new Error(await answer.text());
    fill(await answer.json()); at('lost').hidden = true;
  } catch (error) { at('lost').hidden = false; at('lost').textContent = 'Not reached: ' + error.message; }
}
at('metric').onchange = event => { state.metric = event.target.value; refresh(); };
at('word').oninput = event => { state.word = event.target.value; refresh(); };
refresh(); setInterval(refresh, 3000);
"""
BODY = """<h1>{title}</h1><p class="soft" id="load"></p>
<p class="bar"><label>metric <select id="metric"></select></label> <label>runs with <input id="word" size="16"></label>
<span id="groups"></span></p><p id="lost" class="finding" hidden></p>
<div id="table"></div><h2>Curves</h2><div id="curves"></div><div id="health"></div><div id="settings"></div>
<div id="videos"></div><div id="notes"></div>"""
STYLE = """<link rel=icon href="data:,"><style>#groups label { margin-right: 12px; }
#videos video, #videos img { max-width: 360px; }</style>"""


class BoardServer(ThreadingHTTPServer):
    """The server of one folder."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.runs, self.lock = Runs(folder), Lock()
        try:
            super().__init__((HOST, port), BoardRequest)
        except OSError as error:
            raise UserError(
                f"--port: {port} cannot be listened on: {error.strerror}. Accepted: a free one, 0: any."
            ) from error
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"


class BoardRequest(BaseHTTPRequestHandler):
    """Answers one request."""

    server: BoardServer
    server_version, sys_version, timeout = "ganglion", "", 30

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if self.headers.get("Host", "") not in self.server.names:  # a name that was bound to this address elsewhere
            self.refuse(HTTPStatus.FORBIDDEN)
        elif len(self.path) > LONGEST:
            self.refuse(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif where.path == "/":
            self.front()
        elif where.path == "/view":
            self.view(where.query)
        elif where.path.startswith("/video/"):
            self.video(unquote(where.path.removeprefix("/video/")))
        else:
            self.refuse(HTTPStatus.NOT_FOUND)

    def front(self) -> None:
        nonce = secrets.token_urlsafe(16)
        title = f"Runs in {self.server.runs.folder}".replace("&", "&amp;").replace("<", "&lt;")
        body = f'{BODY.format(title=title)}<script nonce="{nonce}">{SCRIPT}</script>'
        self.answer(page("Ganglion", body, STYLE).encode(), "text/html; charset=utf-8", nonce)

    def view(self, query: str) -> None:
        asked = parse_qs(query, max_num_fields=600)
        first = {name: values[0] for name, values in asked.items()}
        chosen = Chosen(first.get("metric", ""), first.get("word", ""), frozenset(asked.get("hidden", ())))
        with self.server.lock:
            told = parts(self.server.runs, chosen)
        self.answer(json.dumps(told).encode(), "application/json")

    def video(self, name: str) -> None:
        """One of those that the page names; whatever else is asked for is not there."""
        path = self.server.runs.videos.get(name)
        if path is None:
            return self.refuse(HTTPStatus.NOT_FOUND)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                self.head(os.fstat(file.fileno()).st_size, VIDEOS[path.suffix])
                while data := file.read(CHUNK):
                    self.wfile.write(data)
        except OSError:
            self.close_connection = True
        return None

    def answer(self, data: bytes, kind: str, nonce: str = "") -> None:
        self.head(len(data), kind, nonce)
        self.wfile.write(data)

    def head(self, size: int, kind: str, nonce: str = "") -> None:
        script = f"'nonce-{nonce}'" if nonce else "'none'"
        policy = f"default-src 'none'; script-src {script}; style-src 'unsafe-inline'; connect-src 'self'; "
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(size)),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Content-Security-Policy", policy + "img-src 'self' data:; media-src 'self'; frame-ancestors 'none'"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def refuse(self, status: HTTPStatus) -> None:
        self.send_error(status)

    def log_message(self, form: str, *args: Any) -> None:
        """Says nothing: the terminal is for errors."""
