"""A stand-in for the hub's service: the requests of huggingface_hub for models, in memory."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "x" * 34
READER = "hf_" + "r" * 34
"""Tokens that may write, and only read."""

SMALL = (".md", ".json", ".yaml", ".jsonl", ".py", ".txt", ".gitattributes")
"""Files that go into a commit; others go to the store of large files."""


class Hub:
    """repos: by name a list of commits, each a hash and its files; lies: sizes that it states."""

    def __init__(self):
        self.repos, self.large, self.lies = {}, {}, {}
        self.private = set()
        self.requests = []
        self.stalls, self.stalled, self.goes_on = False, threading.Event(), threading.Event()
        service = self

        class Handler(_Handler):
            hub = service

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reset(self):
        for each in (self.repos, self.large, self.lies, self.private, self.requests):
            each.clear()
        self.stalls = False
        self.stalled.clear()
        self.goes_on.clear()

    def commit(self, repo, files):
        """Adds a commit; files: all of its contents by name.  Returns its hash."""
        commits = self.repos.setdefault(repo, [])
        text = repr((repo, len(commits), sorted(files)))
        commits.append((hashlib.sha1(text.encode()).hexdigest(), dict(files)))
        return commits[-1][0]

    def files(self, repo):
        """The files of the newest commit."""
        return self.repos[repo][-1][1]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, *_):
        pass

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status, value=None, data=None, **headers):
        data = json.dumps(value or {}).encode() if data is None else data
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refused(self, writes):
        """Answers a request without the right to it; returns whether it did."""
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if given not in ("", TOKEN, READER):
            message = "Invalid credentials in Authorization header"
            self._send(401, {"error": message}, X_Error_Message=message)
        elif writes and not given:
            message = "Invalid username or password."
            self._send(401, {"error": message}, X_Error_Message=message)
        elif writes and given == READER:
            message = "Forbidden: you must use a write token"
            self._send(403, {"error": message}, X_Error_Message=message)
        else:
            return False
        return True

    def _found(self, repo, revision):
        """A commit; answers a request for one that is not there, and returns None."""
        if repo not in self.hub.repos:
            self._send(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return None
        commits = self.hub.repos[repo]
        for commit in commits:
            if revision == commit[0]:
                return commit
        if revision != "main":
            self._send(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
            return None
        return commits[-1]

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self._refused(False):
            return
        if about := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
            if commit := self._found(about[1], about[2] or "main"):
                sizes = {name: len(data) for name, data in commit[1].items()} | self.hub.lies
                files = [{"rfilename": x, "size": n, "blobId": "0"} for x, n in sizes.items()]
                self._send(200, {"id": about[1], "sha": commit[0], "siblings": files})
        elif file := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            commit = self._found(file[1], file[2])
            if commit is None:
                return
            if file[3] not in commit[1]:
                self._send(404, X_Error_Code="EntryNotFound")
                return
            data = commit[1][file[3]]
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            self._send(200, data=data, ETag=tag, X_Repo_Commit=commit[0])
        else:
            self._send(404)

    do_HEAD = do_GET

    def do_POST(self):
        path, body = unquote(urlsplit(self.path).path), self._body()
        self.hub.requests.append(f"{self.command} {path}")
        if self._refused(True):
            return
        if path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization'] or 'me'}/{asked['name']}"
            status = 409 if name in self.hub.repos else 200
            if status == 200:
                self.hub.commit(name, {".gitattributes": b""})
                if asked.get("private") or asked.get("visibility") == "private":
                    self.hub.private.add(name)
            self._send(status, {"url": f"{self.hub.endpoint}/{name}", "name": name})
        elif re.fullmatch(r"/api/models/.+/preupload/main", path):
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "regular" if each["path"].endswith(SMALL) else "lfs",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            self._send(200, {"files": files})
        elif re.fullmatch(r"/.+\.git/info/lfs/objects/batch", path):
            objects = [
                {
                    **each,
                    "actions": {"upload": {"href": f"{self.hub.endpoint}/store/{each['oid']}"}},
                }
                for each in json.loads(body)["objects"]
            ]
            self._send(200, {"transfer": "basic", "objects": objects})
        elif commit := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            files = dict(self.hub.files(commit[1]))
            for line in map(json.loads, body.splitlines()):
                own = line["value"]
                if line["key"] == "file":
                    files[own["path"]] = base64.b64decode(own["content"])
                elif line["key"] == "lfsFile":
                    files[own["path"]] = self.hub.large[own["oid"]]
                elif line["key"] == "deletedFile":
                    del files[own["path"]]
            made = self.hub.commit(commit[1], files)
            address = f"{self.hub.endpoint}/{commit[1]}/commit/{made}"
            self._send(200, {"success": True, "commitOid": made, "commitUrl": address})
        else:
            self._send(404)

    def do_PUT(self):
        data = self._body()
        self.hub.requests.append(f"PUT {self.path}")
        if self.hub.stalls:
            self.hub.stalled.set()
            self.hub.goes_on.wait(60)
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == oid
        self.hub.large[oid] = data
        self._send(200)
