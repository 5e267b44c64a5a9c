"""`init` and `close`: what they do to the compilers of a process, and what an error, an interrupt or a fork leaves."""

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.compiling.programs import run

LAYERS = """
import os, torch, torch._inductor.codecache as codecache, torch._inductor.compile_fx
from unittest import mock
def layers():
    function, number = codecache.FxGraphCache.prepare_key, 0
    while hasattr(function, "__wrapped__"):
        function, number = function.__wrapped__, number + 1
    return number
values = right = [1.0]
folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
"""


def test_a_forked_child_has_hooks_of_its_own_after_init(tmp_path: Path) -> None:
    code = """
    assert layers() == 1
    child = os.fork()
    if not child:
        own = ws.compile_cache.init(job="child")
        assert own.active, own.reason
        assert layers() == 1
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != folder
        own.close()
        assert layers() == 0
        assert own.session._closing
        assert not own.session.live.path.exists()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert layers() == 1
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == folder
    """
    env = {"TORCHINDUCTOR_CACHE_DIR": "elsewhere"}
    assert run(LAYERS + textwrap.dedent(code), tmp_path / "store", env=env).active


@pytest.mark.parametrize("where", ["CompileSession.restore_job", "JaxHooks.watch"])
def test_an_interrupt_of_init_leaves_nothing(tmp_path: Path, where: str) -> None:
    code = f"""
    cache.close()
    before = dict(os.environ)
    from warmstore.compiling import compile_cache
    owner, name = "{where}".split(".")
    with mock.patch.object(getattr(compile_cache, owner), name, side_effect=KeyboardInterrupt):
        try:
            ws.compile_cache.init(job="interrupted")
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it was not raised")
    assert layers() == 0
    assert dict(os.environ) == before
    assert not os.listdir({str(tmp_path / "store" / "live")!r})
    cache = ws.compile_cache.init({str(tmp_path / "store")!r})
    assert layers() == 1
    """
    assert run(
        LAYERS + textwrap.dedent(code), tmp_path / "store", env={"WARMSTORE_CACHE_DIR": str(tmp_path / "store")}
    ).active


def test_a_hook_that_cannot_be_removed_keeps_no_session_open(tmp_path: Path) -> None:
    code = """
    cache._torch._replaced.append((object(), "nothing", None))
    try:
        cache.close()
    except AttributeError:
        pass
    assert layers() == 0
    assert cache.session._closing
    """
    assert run(LAYERS + textwrap.dedent(code), tmp_path / "store").active


def test_a_remote_that_cannot_be_opened_leaves_the_local_cache(tmp_path: Path) -> None:
    code = """
    cache.close()
    from warmstore.remote import objects
    with mock.patch.object(objects, "obstore_package", side_effect=RuntimeError("broken")):
        cache = ws.compile_cache.init(folder, remote=folder + "-remote")
    """
    key = {"WARMSTORE_SIGNING_KEY": "hmac:" + "5a" * 32}
    where = f"folder = {str(tmp_path / 'store')!r}\n"
    report = run(LAYERS + where + textwrap.dedent(code), tmp_path / "store", env=key)
    assert report.active
    assert "store-remote: not used: broken" in report.stderr


def test_a_session_that_cannot_be_opened_leaves_no_folder(tmp_path: Path) -> None:
    code = """
    cache.close()
    from warmstore.compiling import compile_cache
    with mock.patch.object(compile_cache, "CompileSession", side_effect=RuntimeError("broken")):
        cache = ws.compile_cache.init(folder, job="other")
    assert not os.listdir(folder + "/live")
    """
    where = f"folder = {str(tmp_path / 'store')!r}\n"
    report = run(LAYERS + where + textwrap.dedent(code), tmp_path / "store")
    assert not report.active
    assert "broken" in report.reason


@pytest.mark.parametrize("fresh", [True, False], ids=["init first", "torch first"])
def test_options_of_a_profile_end_with_the_cache(tmp_path: Path, fresh: bool) -> None:
    code = """
    import torch._inductor.config as config
    def options():
        return config.cpp.march, config.cpp.dynamic_threads, config.cpp.simdlen
    assert options() == ("x86-64-v3", True, 256)
    cache.close()
    assert options() == (None, False, None)
    assert "TORCHINDUCTOR_CPP_MARCH" not in os.environ
    cache = ws.compile_cache.init(os.environ["WARMSTORE_CACHE_DIR"], profile="portable")
    config.cpp.march = "x86-64-v4"
    cache.close()
    assert options() == ("x86-64-v4", False, None)
    values = right = [1.0]
    cache = ws.compile_cache.init(os.environ["WARMSTORE_CACHE_DIR"])
    """
    env = {"WARMSTORE_CACHE_DIR": str(tmp_path / "store")}
    assert run(code, tmp_path / "store", profile="portable", fresh=fresh, env=env).active


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
@pytest.mark.parametrize("folder", [None, "own"])
def test_a_jax_that_is_imported_after_init_has_its_options_back_after_close(tmp_path: Path, folder: str | None) -> None:
    code = f"""
    import jax, jax.numpy as jnp
    values, right = jax.jit(lambda x: jnp.cumsum(x * x))(jnp.arange(9.0)), jnp.cumsum(jnp.arange(9.0) ** 2)
    live = cache.session.live.path
    assert jax.config.jax_compilation_cache_dir == str(live / "jax")
    cache.close()
    assert jax.config.jax_compilation_cache_dir == {folder and str(tmp_path / folder)!r}
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
    jax.jit(lambda x: x * 3)(jnp.ones(3)).block_until_ready()
    assert not live.exists()
    """
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / folder)} if folder else {}
    assert run(code, tmp_path / "store", env=env).right
