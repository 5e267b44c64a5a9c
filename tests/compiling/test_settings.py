"""What `init` is told: checked at once, by argument, by variable or by default."""

import os
import pwd
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import warmstore as ws
from warmstore.compiling.hooks.compiler_profiles import apply_options, choose, requirements_now
from warmstore.compiling.settings import Settings


def settings(**told: Any) -> Settings:
    """Settings of some arguments."""
    defaults = {"local_dir": None, "max_size": None, "eviction": "lru", "profile": "auto", "job": None, "offline": None}
    return Settings.of(**{**defaults, "wait": 1.0, **told})


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"eviction": "newest"}, "'newest'"),
        ({"max_size": "many"}, "'many'"),
        ({"max_size": 1000}, "less than"),
        ({"profile": "quick"}, "profile='quick'"),
        ({"wait": -1}, "wait=-1"),
        ({"remote": "s3://bucket/x", "remote_options": {"endpointt": "x"}}, "did you mean 'endpoint'?"),
        ({"remote": "s3://bucket/x", "remote_options": {"client_options": {"timeouts": 1}}}, "mean 'timeout'?"),
    ],
)
def test_nonsense_is_an_error_at_init(told: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        ws.compile_cache.init(tmp_path, **told)


@pytest.mark.parametrize(
    ("name", "value"),
    [("WARMSTORE_MAX_SIZE_GB", "lots"), ("WARMSTORE_OFFLINE", "perhaps"), ("WARMSTORE_LOG", "loud")],
)
def test_nonsense_in_variables_is_too(name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=value):
        ws.compile_cache.init(tmp_path)


def test_arguments_win_over_variables_and_these_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSTORE_CACHE_DIR", raising=False)
    plain = settings()
    assert (plain.max_size, plain.offline, plain.job_is_named) == (100 * 10**9, False, False)
    assert plain.folder.name == "compiled"
    for name, value in {"CACHE_DIR": str(tmp_path), "MAX_SIZE_GB": "2.5", "OFFLINE": "1", "JOB": "a"}.items():
        monkeypatch.setenv(f"WARMSTORE_{name}", value)
    told = settings()
    assert (told.folder, told.max_size, told.offline, told.job) == (tmp_path, 2_500_000_000, True, "a")
    told = settings(local_dir="b", max_size="9MiB", offline=False, job="c")
    assert (told.folder, told.max_size, told.offline, told.job) == (Path.cwd() / "b", 9 << 20, False, "c")


def test_a_script_whose_name_is_no_utf8_has_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSTORE_JOB", raising=False)
    monkeypatch.setattr(sys, "argv", [os.fsdecode(b"caf\xe9.py")])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    with ws.compile_cache.init(tmp_path) as cache:
        assert cache.active, cache.reason
        assert cache.settings.job == "caf\ufffd"


def test_portable_code_asks_less_of_the_machine() -> None:
    assert choose("auto") == choose("fast")
    assert not choose("fast").requirements
    assert choose("portable").requirements["capability"] is None
    assert "avx512f" not in choose("portable").requirements["isa"]


def test_portable_code_needs_less_only_where_all_options_are_those_of_the_profile() -> None:
    from torch._inductor import config

    portable = choose("portable")
    with config.patch({name: getattr(config, name) for name in ("cpp.march", "cpp.simdlen", "cpp.dynamic_threads")}):
        assert requirements_now(portable) == {}
        apply_options(portable, config)
        assert requirements_now(portable) == portable.requirements
        for changed in ({"cpp.march": "native"}, {"cpp.simdlen": 512}, {"cpp.simdlen": None}):
            with config.patch(changed):
                assert requirements_now(portable) == {}
    assert requirements_now(choose("fast")) == {}


@pytest.mark.parametrize("folder", [None, "~nobody_of_this_name/compiled"])
def test_without_a_home_there_is_no_cache_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: str | None
) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "WARMSTORE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    if folder is not None:
        monkeypatch.setenv("WARMSTORE_CACHE_DIR", folder)
    cache = ws.compile_cache.init(job="job")
    assert not cache.active
    assert "home directory" in cache.reason
    assert "set WARMSTORE_CACHE_DIR or local_dir" in cache.reason
    assert [record.levelname for record in caplog.records] == ["WARNING"]
