"""torch.compile in fresh processes: what one compiled the next finds, and whatever is wrong, results are right."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compiling.programs import SINE, START, finish, launch, run, with_torch_in
from tests.faults.small_disk import small_file_system
from tests.slow import thinned

from warmstore.compiling.store.artifact_store import ArtifactStore

Blobs = Callable[[Path], list[Path]]


class Intruder:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_fresh_process_finds_everything(filled: Path) -> None:
    report = run(SINE, filled, fresh=True)
    assert report.right
    assert report.misses == []
    assert [key.split("/")[1] for key in report.hits[:2]] == ["aotautograd", "fxgraph"]
    assert report.hits[2].endswith(".main.so")
    assert report.inductor["fxgraph_cache_hit"] == 1
    assert report.kept == 0


@pytest.mark.slow
def test_init_after_torch_finds_it_too(filled: Path) -> None:
    before = "import torch, torch._inductor.compile_fx, torch._inductor.cpu_vec_isa\n"
    report = run(SINE, filled, start=before + START)
    assert report.right
    assert report.misses == []


@pytest.mark.slow
def test_home_cwd_temporary_folder_and_the_store_may_move(filled: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    for name in ("home", "cwd", "tmp"):
        (elsewhere / name).mkdir(parents=True)
    filled.rename(elsewhere / "store")
    env = {"HOME": str(elsewhere / "home"), "TMPDIR": str(elsewhere / "tmp"), "USER": "somebody", "LOGNAME": "somebody"}
    report = run(SINE, elsewhere / "store", env=env, cwd=elsewhere / "cwd")
    assert report.right
    assert report.misses == []


@pytest.mark.slow
def test_another_path_of_torch_is_no_other_key(filled: Path, tmp_path: Path) -> None:
    report = run(SINE, filled, start=with_torch_in(tmp_path / "site"), fresh=True)
    assert report.right
    assert report.misses == []


@pytest.mark.slow
def test_names_of_variables_are_not_in_keys(tmp_path: Path) -> None:
    """Arguments of the function that is compiled, sizes of them that are dynamic, and local variables."""
    first = run(NAMED, tmp_path / "store")
    assert first.right
    assert first.misses
    again = run(re.sub(r"\b[abcd]\b", r"other_\g<0>", NAMED), tmp_path / "store")
    assert again.right
    assert again.misses == []
    assert [key for key in again.hits if "/aotautograd/" in key]
    swapped = run(NAMED.replace("c * 2 + d", "d * 2 + c"), tmp_path / "store")
    assert swapped.right
    assert swapped.misses


NAMED = """
import torch
x, y = torch.arange(12.0).reshape(3, 4), torch.ones(5, 4)
torch._dynamo.mark_dynamic(x, 0)
torch._dynamo.mark_dynamic(y, 0)

def function(a, b):
    c, d = torch.sin(a), torch.cos(b).sum(0)
    return c * 2 + d

values, right = torch.compile(function)(x, y), function(x, y)
"""
ATTENTION = """
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
attend = lambda q: F.scaled_dot_product_attention(q, q, q)
q = torch.randn(1, 2, 8, 8)
with sdpa_kernel(SDPBackend.{kernel}):
    values, right = torch.compile(attend)(q), attend(q)
"""
RECURRENT = """
import torch
import torch._inductor.config
torch._dynamo.config.allow_rnn = torch._inductor.config.fallback_by_default = True
torch.backends.mkldnn.enabled = {enabled}
layer, x = torch.nn.LSTM(8, 8).eval(), torch.randn(5, 3, 8)
with torch.no_grad():
    values, right = torch.compile(layer)(x)[0], layer(x)[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "programs",
    [
        [ATTENTION.format(kernel=kernel) for kernel in ("FLASH_ATTENTION", "MATH", "FLASH_ATTENTION")],
        [RECURRENT.format(enabled=enabled) for enabled in (True, False, True)],
    ],
)
def test_another_kernel_is_another_graph(programs: list[str], tmp_path: Path) -> None:
    found = [[key for key in run(one, tmp_path / "store").hits if "/aotautograd/" in key] for one in programs]
    assert [len(keys) for keys in found] == [0, 0, 1]


_slow = [pytest.param(name, marks=pytest.mark.slow) for name in ("truncated", "emptied", "flipped", "gone", "a source")]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a pickle", *_slow])
def test_a_damaged_store_is_compiled_anew(filled: Path, tmp_path: Path, blobs: Blobs, damage: str) -> None:
    mark = tmp_path / "intruded"
    for path in blobs(filled):
        data = path.read_bytes()
        match damage:
            case "truncated":
                path.write_bytes(data[: len(data) // 2])
            case "emptied":
                path.write_bytes(b"")
            case "flipped":
                path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
            case "a pickle":
                path.write_bytes(pickle.dumps(Intruder(mark)))
            case "a source":
                path.write_text(f"import os; os.mkdir({str(mark)!r})")
            case "gone":
                path.unlink()
    report = run(SINE, filled)
    assert report.right
    assert not report.hits
    assert not mark.exists()


@pytest.mark.slow
def test_live_folders_of_others_are_never_read(filled: Path, tmp_path: Path) -> None:
    """Files that somebody left where compilers of earlier processes looked."""
    mark = tmp_path / "intruded"
    run(SINE, filled)
    left = filled / "live" / "live-left"
    for name in ("inductor/aotautograd/x/y", "inductor/fxgraph/ab/fab/z"):
        (left / name).parent.mkdir(parents=True)
        (left / name).write_bytes(pickle.dumps(Intruder(mark)))
    report = run(SINE, filled)
    assert report.right
    assert report.misses == []
    assert not mark.exists()


@pytest.mark.slow
def test_another_instruction_set_is_a_miss_with_a_reason(filled: Path) -> None:
    report = run(SINE, filled, env={"ATEN_CPU_CAPABILITY": "default"})
    assert report.right
    assert not report.hits
    graphs = [one for one in report.lookups if "/aotautograd/" in one["key"]]
    assert re.fullmatch(r"capability \w+ -> default", graphs[0]["changed"][0])


LATER = """
import os
if "LATER" in os.environ:
    os.environ["ATEN_CPU_CAPABILITY"] = os.environ["LATER"]
"""


@pytest.mark.slow
def test_an_instruction_set_that_is_chosen_after_init_is_in_the_keys(tmp_path: Path) -> None:
    """torch reads the variable at each compilation."""
    code = LATER + SINE.replace("torch.compile(lambda", "f(lambda")
    plain, packaged = (code.replace("f(", f"{name}.compile(") for name in ("torch", "ws"))
    assert run(plain, tmp_path / "plain").right
    later = run(plain, tmp_path / "plain", env={"LATER": "default"})
    assert (later.right, later.hits) == (True, [])
    assert run(packaged, tmp_path / "packaged", env={"LATER": "default"}).right
    reverse = run(packaged, tmp_path / "packaged")
    assert (reverse.right, reverse.hits) == (True, [])
    (reasons,) = [one["reasons"] for one in reverse.lookups if one["key"].startswith("package/")]
    assert "it was compiled for INVALID_VEC_ISA 0, and torch now compiles for " in reasons[0]
    assert run(packaged, tmp_path / "packaged").misses == []


@pytest.mark.slow
def test_portable_code_is_found_under_another_instruction_set(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert run(SINE, folder, profile="portable").kept
    report = run(SINE, folder, profile="portable", env={"ATEN_CPU_CAPABILITY": "avx2"})
    assert report.right
    assert report.misses == []


@pytest.mark.slow
def test_what_the_user_compiles_for_this_machine_is_not_portable(tmp_path: Path) -> None:
    native = tmp_path / "native"
    assert run(SINE, native, profile="portable", env={"TORCHINDUCTOR_CPP_MARCH": "native"}, fresh=True).kept
    portable = SINE.replace("torch.compile(", "ws.compile(options={'cpp.simdlen': 512})(")
    assert run(portable, tmp_path / "wide", profile="portable").kept
    for folder in (native, tmp_path / "wide"):
        with ArtifactStore(folder) as store:
            made = [one for one in store.all() if one.kind in ("cpp.so", "fx_graph", "aot_autograd", "package")]
        assert len(made) >= 2
        assert [one.requirements for one in made] == [{}] * len(made)


@pytest.mark.parametrize("what", thinned(2, ["a file", "damaged index", "newer index", "of others"]))
def test_a_folder_that_cannot_be_used_stops_nobody(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "store"
    code = "values = right = [1.0]"
    if what == "a file":
        folder.write_text("")
    else:
        assert run(code, folder).active
    if what == "damaged index":
        (folder / "index.sqlite").write_bytes(b"no database" * 1000)
    if what == "newer index":
        import sqlite3

        with sqlite3.connect(folder / "index.sqlite") as db:
            db.execute("UPDATE format SET version = 999")
            db.execute("PRAGMA user_version = 999")
        db.close()
    if what == "of others":
        folder.chmod(0o777)
    report = run(code, folder)
    assert report.active == (what == "damaged index")
    if what == "of others":
        assert "chmod go-w" in report.reason


@pytest.mark.slow
def test_a_store_on_a_read_only_disk_is_read(filled: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path, "64m") as disk:
        shutil.copytree(filled, disk / "store")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        report = run(SINE, disk / "store", cwd=tmp_path)
    assert report.right
    assert report.misses == []
    assert report.kept == 0
    assert report.live is not None
    assert not report.live.startswith(str(disk))


@pytest.mark.slow
def test_a_second_start_of_a_transformer_compiles_nothing(tmp_path: Path) -> None:
    """Forward and backward. What this saves is measured in `benchmarks/compiling.py`."""
    code = """
    import torch
    block = lambda: torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[block() for _ in range(4)])
    right = model(torch.ones(2, 16, 64)).detach()
    values = torch.compile(model)(torch.ones(2, 16, 64))
    values.sum().backward()
    values = values.detach()
    """
    cold, warm = (run(textwrap.dedent(code), tmp_path / "store", job="transformer") for _ in range(2))
    assert cold.right
    assert warm.right
    assert cold.kept > 0
    assert warm.misses == []
    assert "fxgraph_cache_miss" not in warm.inductor


@pytest.mark.slow
def test_killed_anywhere_the_next_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    for _ in range(2):
        process = launch(SINE, folder)
        live = folder / "live"
        while not list(live.glob("live-*/inductor/*/*.main.cpp")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert list(live.glob("live-*/inductor"))
    report = run(SINE, folder)
    assert report.right
    assert not list(live.iterdir())
    assert run(SINE, folder).misses == []


@pytest.mark.slow
def test_another_version_of_torch_finds_what_its_job_used(tmp_path: Path) -> None:
    start = "import warmstore.compiling.hooks.torch_hooks as hooks; hooks.TESTED = ('0.0',)\n" + START
    assert run(SINE, tmp_path / "store", start=start).kept
    report = run(SINE, tmp_path / "store", start=start)
    assert report.right
    assert report.lookups == []
    assert report.inductor["fxgraph_cache_hit"] == 1
    assert report.kept == 0


@pytest.mark.slow
def test_eight_at_once(tmp_path: Path) -> None:
    reports = [finish(one) for one in [launch(SINE, tmp_path / "store") for _ in range(8)]]
    assert all(report.right for report in reports)
    compiled = [report for report in reports if any(key.endswith(".main.so") for key in report.misses)]
    assert len(compiled) == 1
