"""Real servers for the tests, each a process that can be killed and started again at the same address."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests import warm
from tests.ports import free_port
from tests.remote.packages import find_nginx

BUCKET = "bucket"


class Server:
    """A server process on a port of its own. `url` is where it listens; a context manager."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def begin(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start the process."""
        return subprocess.Popen(command, **options)

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        root = Path(__file__).parents[2]
        with open(self.folder / "output", "ab") as output:
            environment = {**os.environ, "PYTHONPATH": str(root)}
            self._process = self.begin(self.command(), stdout=output, stderr=output, cwd=root, env=environment)
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.command()} ended: {(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        process, self._process = self._process, None  # several threads of a proxy may call this
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()


class S3(Server):
    """moto: an S3 whose buckets live in memory, so that they are gone when it is killed. Honours conditional create."""

    options: dict[str, Any]

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def begin(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return warm.popen(command, preload=("moto.server", "moto.s3.urls"), **options)

    def start(self) -> Self:
        super().start()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")):
            pass
        return self

    @property
    def variables(self) -> dict[str, str]:
        """What a program's environment says, so that s3://bucket/... means this server."""
        return s3_variables(self.url)


def s3_variables(url: str) -> dict[str, str]:
    """An environment in which s3:// means the server, or the proxy, at `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "an-access-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key-nobody-may-see",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


class GCS(Server):
    """The fake of tests/remote/gcs.py, whose objects are files and outlive it."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "tests.remote.gcs", str(self.folder / "objects"), str(self.port)]

    def account(self, path: Path) -> Path:
        """Write a service account's file that sends obstore here; GOOGLE_SERVICE_ACCOUNT may name it."""
        return gcs_account(path, self.url)


def gcs_account(path: Path, url: str) -> Path:
    """A service account's file with which gs:// means the server, or the proxy, at `url`."""
    path.write_text(
        f'{{"type": "service_account", "gcs_base_url": "{url}", "disable_oauth": true, "client_email": "",'
        ' "private_key": "a-private-key-nobody-may-see", "private_key_id": ""}'
    )
    return path


class Nginx(Server):
    """nginx with WebDAV over `root`: an HTTP cache, whose files outlive it. Ranges of sparse files cost nothing."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        self.root = folder / "root"

    def command(self) -> Sequence[str]:
        found = find_nginx()
        assert found is not None
        program, module = found
        self.root.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            shutil.chown(self.root, "root")
        config = self.folder / "nginx.conf"
        config.write_text(
            f"""
            load_module {module};
            daemon off; master_process off; pid {self.folder}/pid; error_log {self.folder}/error.log;
            {"user root;" if os.getuid() == 0 else ""}
            events {{ worker_connections 256; }}
            http {{
                access_log off; client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy;
                fastcgi_temp_path {self.folder}/fastcgi; uwsgi_temp_path {self.folder}/uwsgi;
                scgi_temp_path {self.folder}/scgi; client_max_body_size 0; sendfile on; keepalive_requests 100000;
                server {{
                    listen 127.0.0.1:{self.port}; root {self.root};
                    dav_methods PUT DELETE MKCOL COPY MOVE; dav_ext_methods PROPFIND OPTIONS;
                    create_full_put_path on; dav_access user:rw group:rw all:r;
                }}
            }}
            """
        )
        return [str(program), "-p", str(self.folder), "-c", str(config)]


def objects_of(folder: Path) -> dict[str, Path]:
    """The files of a server's folder by name, without those that are being written."""
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
