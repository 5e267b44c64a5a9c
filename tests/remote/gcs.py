"""A fake of the XML interface of Google Cloud Storage: the calls that obstore makes, over files in a folder.

Get (with ranges), head, put (with x-goog-if-generation-match: 0, which is put if absent), delete, list, and uploads in
parts. https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

import hashlib
import sys
import threading
import uuid
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = Path()
    parts = Path()

    def _where(self) -> tuple[str, str, dict[str, str]]:
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        return bucket, name, {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}

    def _file(self, bucket: str, name: str) -> Path:
        return self.root / bucket / "/".join(part.replace("%", "%25") + "%" for part in name.split("/"))

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        bucket, name, query = self._where()
        if not name:
            return self._list(bucket, query)
        path = self._file(bucket, name)
        if not path.is_file():
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        size = path.stat().st_size
        first, last, status = 0, size - 1, 200
        if wanted := self.headers.get("Range"):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last = (int(start), min(int(end), last) if end else last) if start else (size - int(end), last)
            status = 206
            if first >= size:
                return self._answer(416)
        headers = {**_described(path), "Content-Length": str(last - first + 1)}
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        if self.command == "HEAD":
            return self._answer(status, b"", headers)
        with open(path, "rb") as file:
            file.seek(first)
            return self._answer(status, file.read(last - first + 1), headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        folder = self.root / bucket
        found, groups = [], set()
        for path in sorted(folder.rglob("*")) if folder.exists() else ():
            if not path.is_file():
                continue
            parts = path.relative_to(folder).parts
            name = "/".join(part[:-1].replace("%25", "%") for part in parts)
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                groups.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            state = _described(path)
            stamp = f"{state['ETag']}"
            found.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(stamp)}</ETag><Size>{path.stat().st_size}</Size></Contents>"
            )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(group)}</Prefix></CommonPrefixes>" for group in groups)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}{common}</ListBucketResult>"
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def do_PUT(self) -> None:
        bucket, name, query = self._where()
        data = self._body()
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if "uploadId" in query:
            (self.parts / query["uploadId"]).mkdir(parents=True, exist_ok=True)
            (self.parts / query["uploadId"] / f"{int(query['partNumber']):06}").write_bytes(data)
            return self._answer(200, b"", {"ETag": etag})
        with _LOCK:
            path = self._file(bucket, name)
            if self.headers.get("x-goog-if-generation-match") == "0" and path.exists():
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self._place(path, data)
        return self._answer(200, b"", {"ETag": etag, "x-goog-generation": "1"})

    def _place(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.parts / uuid.uuid4().hex
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(path)

    def do_POST(self) -> None:
        bucket, name, query = self._where()
        self._body()
        if "uploads" in query:
            body = f"<InitiateMultipartUploadResult><UploadId>{uuid.uuid4().hex}</UploadId>"
            return self._answer(200, f"{body}</InitiateMultipartUploadResult>".encode())
        files = sorted((self.parts / query["uploadId"]).iterdir())
        with _LOCK:
            self._place(self._file(bucket, name), b"".join(file.read_bytes() for file in files))
        body = '<CompleteMultipartUploadResult><ETag>"parts"</ETag></CompleteMultipartUploadResult>'
        return self._answer(200, body.encode(), {"x-goog-generation": "1"})

    def do_DELETE(self) -> None:
        bucket, name, _ = self._where()
        path = self._file(bucket, name)
        there = path.is_file()
        path.unlink(missing_ok=True)
        self._answer(204 if there else 404)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


def _described(path: Path) -> dict[str, str]:
    state = path.stat()
    return {
        "ETag": f'"{state.st_mtime_ns:x}-{state.st_size:x}"',
        "Last-Modified": formatdate(state.st_mtime, usegmt=True),
        "x-goog-generation": "1",
    }


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    Handler.parts = Path(sys.argv[1] + ".parts")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
