"""Steps of DALI operators: the same bits by any process, batch and cache, and clear words for what cannot be a step."""

import io
import os
import pickle
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import check, expected, plan_of, same
from tests.pipeline.making import described as step_described

import warmstore as ws
from warmstore.pipeline.step_identities import difference_of
from warmstore.pipeline.steps import Step

dali = pytest.importorskip("nvidia.dali")
from nvidia.dali import fn  # noqa: E402

Image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).parents[2]
COUNT = 24


def jpeg(index: int) -> bytes:
    pixels = np.random.default_rng(index).integers(0, 256, (5, 4 + index % 3, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((64 + index, 48)).save(file, "JPEG")
    return file.getvalue()


def sample_of(index: int) -> dict[str, Any]:
    return {"image": jpeg(index), "label": index}


def decode(data: Any, size: int) -> Any:
    return fn.resize(fn.decoders.image(data, device="cpu"), size=(size, size))


def turn(image: Any, angle: Any) -> Any:
    return fn.rotate(image, angle=angle, keep_size=True)


def normalize(image: Any) -> Any:
    pixels = fn.crop_mirror_normalize(image, crop=(16, 16), mean=[120.0], std=[60.0], output_layout="CHW")
    return {"pixels": pixels, "shape": image.shape()}


def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "angle": float(rng.uniform(-30, 30))}


def images() -> ws.Pipeline:
    pipe = ws.Pipeline(range(COUNT)).step(sample_of).step(ws.Dali(decode, fields="image", size=20))
    pipe = pipe.step(ws.Dali(normalize, fields=["image"])).step(draw, random=True)
    return pipe.step(ws.Dali(turn, fields=["image", "angle"]))


def test_one_by_one_as_in_a_batch_of_a_dali_pipeline() -> None:
    pipeline = dali.Pipeline(batch_size=COUNT, num_threads=2, device_id=None)
    with pipeline:
        pipeline.set_outputs(decode(fn.external_source(name="data"), 20))
    pipeline.build()
    files = [jpeg(index) for index in range(COUNT)]
    pipeline.feed_input("data", [np.frombuffer(file, np.uint8) for file in files])
    (batch,) = pipeline.run()
    step = ws.Dali(decode, size=20)
    for at, file in enumerate(files):
        assert same(step(file), np.array(batch[at]))
    exact = np.asarray(Image.open(io.BytesIO(files[0])).resize((20, 20), Image.Resampling.BILINEAR))
    assert np.abs(step(files[0]).astype(int) - exact).mean() < 3


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "spawn")])
def test_kept_or_not(workers: int, method: str | None, tmp_path: Path) -> None:
    pipe = images()
    assert [step.name for step in pipe.steps] == ["sample_of", "decode", "normalize", "draw", "turn"]
    assert sorted(pipe[3]) == ["angle", "image", "label", "pixels", "shape"]
    plan = plan_of(pipe, [(2, "memory", "raw"), (3, "disk", "zstd")], [8, 8], folder=tmp_path)
    with pipe.loader(plan, 8, workers=workers, start_method=method, seed=3) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 3, epoch), range(2))
    assert pipe.fill(plan, workers=0).found >= 8  # what lies on the disk
    pipe.close()


def test_forked_workers_build_their_own(tmp_path: Path) -> None:
    script = """
        import warnings
        warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
        from tests.pipeline.making import check, expected
        from tests.pipeline.test_dali import images
        pipe = images()
        pipe[0]  # so that there is something to inherit
        with pipe.loader(None, 8, workers=2, start_method="fork") as loader:
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
        print("done")
    """
    path = tmp_path / "script.py"
    path.write_text("\n".join(line.removeprefix(" " * 8) for line in script.splitlines()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, str(path)]
    ran = subprocess.run(command, env=environment, cwd=ROOT, timeout=300, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_a_broken_sample_breaks_no_other() -> None:
    files = [jpeg(0), jpeg(1)[:60], jpeg(2)]
    pipe = ws.Pipeline(files).step(ws.Dali(decode, size=8))
    first = pipe[0]
    with pytest.raises(RuntimeError, match=r"fn\.decoders\.image") as error:
        pipe[1]
    assert "step 'decode' of sample 1" in error.value.__notes__[0]
    assert same(pipe[0], first)
    assert same(pipe[2], ws.Dali(decode, size=8)(files[2]))


def test_threads_and_pickles() -> None:
    step = ws.Dali(decode, size=8)
    files = [jpeg(index) for index in range(COUNT)]
    wanted = [step(file) for file in files]
    again = pickle.loads(pickle.dumps(step))
    assert same([again(file) for file in files], wanted)
    got: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda at=at: got.update({at: [step(file) for file in files]})) for at in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(got[at], wanted) for at in range(3))


def test_audio() -> None:
    file = io.BytesIO()
    samples = np.random.default_rng(0).integers(-3000, 3000, 500).astype("<i2")
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(samples.tobytes())
    decoded = ws.Dali(lambda data: dict(zip(("sound", "rate"), fn.decoders.audio(data), strict=True)))(file.getvalue())
    assert decoded["rate"] == 8000
    np.testing.assert_allclose(decoded["sound"][:, 0], samples / 32768, atol=1e-4)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">i4"),
        np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        np.arange(6, dtype=np.uint64)[::-2],
        np.array([True, False]),
        np.zeros((0, 3), np.float16),
        np.float32(2.5),
        np.arange(3, dtype=np.int8),
    ],
)
def test_values_go_in_as_they_are(value: Any) -> None:
    out = ws.Dali(lambda node: node)(value)
    assert out.dtype == value.dtype.newbyteorder("=")
    assert out.tolist() == value.tolist()
    assert out.shape == value.shape


def test_bytes_and_numbers() -> None:
    whole = ws.Dali(lambda node: node)
    for value, dtype in [(b"abc", np.uint8), (7, np.int32), (0.5, np.float32), (True, np.bool_)]:
        assert same(whole(value), np.frombuffer(value, dtype) if dtype is np.uint8 else np.array(value, dtype))
    with pytest.raises(OverflowError):
        whole(1 << 40)


@pytest.mark.parametrize("value", [np.ones(2, np.complex64), "text", {"image": b""}, None, np.ones(2, np.longdouble)])
def test_values_that_dali_would_take_for_something_else(value: Any) -> None:
    with pytest.raises(TypeError, match="DALI takes bytes, and arrays"):
        ws.Dali(lambda node: node)(value)


@pytest.mark.parametrize(
    ("define", "error", "message"),
    [
        (
            lambda x: fn.rotate(x, angle=fn.random.uniform(range=(0.0, 9.0))),
            ValueError,
            r"fn\.random\.uniform, .* draws",
        ),
        (
            lambda x: fn.decoders.image_random_crop(x, device="cpu"),
            ValueError,
            r"fn\.decoders\.image_random_crop, .* dr",
        ),
        (
            lambda x: {"a": x, "b": fn.noise.gaussian(x) + 1},
            ValueError,
            r"uses nvidia\.dali\.fn\.noise\.gaussian, which",
        ),
        (lambda x: fn.cat(x, fn.readers.file(files=["a"])[0]), ValueError, r"fn\.readers\.file, which reads"),
        (lambda x: fn.cat(x, fn.external_source(source=lambda: [1])), ValueError, r"external_source, which reads"),
        (lambda x: fn.decoders.image(x, device="mixed"), ValueError, r"fn\.decoders\.image, which runs on a GPU"),
        (lambda x: x.gpu(), ValueError, "runs on a GPU"),
        (lambda x: 3, TypeError, "<lambda> must return a DALI node or a dict of them; got 3"),
        (lambda x: fn.ones(shape=[2]), ValueError, "does not use its input 'value'"),
    ],
)
def test_what_cannot_be_a_step(define: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ws.Dali(define)


def test_misuse() -> None:
    with pytest.raises(ValueError, match="fields names nothing"):
        ws.Dali(decode, fields=[], size=3)
    pipe = ws.Pipeline([jpeg(0)]).step(ws.Dali(decode, size=4), random=True)
    with pytest.raises(TypeError, match="cannot be random=True"):
        pipe[0]


def test_what_a_key_covers(program: Any) -> None:
    source = """
        from nvidia.dali import fn
        import warmstore as ws

        SIZE = (8, 8)

        def define(image, flip=0):
            return fn.flip(fn.resize(image, size=SIZE), horizontal=flip)
    """
    module = program(source)

    def described(**options: Any) -> Any:
        return step_described(Step(ws.Dali(module.define, **options), name="step"))

    plain = described()
    used = ws.Dali(module.define)
    used(np.zeros((4, 4, 3), np.uint8))
    assert step_described(Step(used, name="step")) == described() == plain
    assert any(place.startswith("version of nvidia") for place in plain["facts"])
    assert difference_of([plain], [described(flip=1)])
    assert difference_of([plain], [described(fields="image")])
    module = program(source.replace("(8, 8)", "(8, 9)"))
    assert difference_of([plain], [described()])


def test_a_change_of_what_the_function_reads_counts(program: Any, tmp_path: Path) -> None:
    module = program("""
        import numpy as np
        from nvidia.dali import fn

        ADDED, SCALES = 1, np.array([2])

        def define(number):
            return number * int(SCALES[0]) + ADDED
    """)
    step = ws.Dali(module.define)
    pipe = ws.Pipeline(range(4)).step(step)

    def epoch() -> list[int]:
        plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path)
        with pipe.loader(plan, 4, workers=0, sampler=ws.Sequential()) as loader:
            return [int(value) for batch in loader for value in batch]

    assert epoch() == epoch() == [1, 3, 5, 7]
    module.ADDED = 10
    assert step(1) == 12
    assert epoch() == [10, 12, 14, 16]
    module.SCALES[0] = 3  # leaves no trace
    assert epoch() == epoch() == [10, 13, 16, 19]
    pipe.close()
