"""nginx for the tests, unpacked from Debian's packages into build/servers: needs apt-get and no root.

`make test` runs this. Where the packages cannot be had, tests that need nginx skip and say so.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("nginx", "libnginx-mod-http-dav-ext")
FOLDER = Path(__file__).parents[2] / "build" / "servers"
_MODULE = "usr/lib/nginx/modules/ngx_http_dav_ext_module.so"


def find_nginx() -> tuple[Path, Path] | None:
    """The program and its module for WebDAV, installed or unpacked here; None where there is none."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    for binary, root in ((program, Path("/")), (FOLDER / "usr/sbin/nginx", FOLDER)):
        if binary and Path(binary).exists() and (root / _MODULE).exists():
            return Path(binary), root / _MODULE
    return None


def main() -> int:
    """Unpack the packages, unless nginx is there already. Never fails: tests go without."""
    if find_nginx() is not None:
        return 0
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=scratch, check=True, timeout=300)
            for archive in Path(scratch).glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(archive), str(FOLDER)], check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"nginx cannot be had ({error}); tests that need it are skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
