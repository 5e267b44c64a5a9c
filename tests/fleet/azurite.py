"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm in build/servers."""

import base64
import hashlib
import hmac
import subprocess
import urllib.request
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from tests.remote.servers import Server

FOLDER = Path(__file__).parents[2] / "build" / "servers" / "azurite"
ACCOUNT, CONTAINER = "devstoreaccount1", "box"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def installed() -> Path | None:
    """The program, installed by npm where it is missing; None if it cannot be."""
    program = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), "azurite@3"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError):
            return None
    return program if program.exists() else None


class Azurite(Server):
    """Objects are files below its folder."""

    def command(self) -> Sequence[str]:
        program = installed()
        assert program is not None
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder / "data")]
        return [str(program), *options, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def make_container(self) -> None:
        """Create the container, by a request with a shared key."""
        date = formatdate(usegmt=True)
        path = f"/{ACCOUNT}/{CONTAINER}"
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        text = f"PUT{chr(10) * 12}{canonical}/{ACCOUNT}{path}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        headers["Content-Length"] = "0"
        request = urllib.request.Request(f"{self.url}{path}?restype=container", None, headers, method="PUT")
        with urllib.request.urlopen(request):
            pass

    @property
    def connection_string(self) -> str:
        return f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.url}/{ACCOUNT};"
