"""Calibration data: what users have is read as they mean it, or refused with what to do."""

from __future__ import annotations

import gc
import itertools
import logging
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from qdqtune.calibration._sample_set import ExpectedInput, SampleSet, expected_inputs, open_samples
from qdqtune.records._errors import ModelError, UsageError
from tests.conftest import model_from_text

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
IMAGE = [ExpectedInput("x", FLOAT, (1, 3, 4, 5))]
BATCH = [ExpectedInput("x", FLOAT, (4, 3))]
OPEN = [ExpectedInput("x", FLOAT, (None, 3))]
TEXT = [ExpectedInput("ids", INT64, (None, None)), ExpectedInput("mask", INT64, (None, None))]


def rows(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def stacked(samples: SampleSet, name: str = "x") -> np.ndarray:
    return np.concatenate([feeds[name] for feeds in samples])


class TestInputs:
    def test_are_those_that_have_to_be_fed(self) -> None:
        proto = model_from_text(
            "g (float[N,3] x, float[2] w, int64 s) => (float[N,3] y) { y = Identity(x) }",
            w=np.ones(2, np.float32),
        )
        assert expected_inputs(ir.from_proto(proto)) == [
            ExpectedInput("x", FLOAT, (None, 3)),
            ExpectedInput("s", INT64, ()),
        ]

    def test_that_are_no_tensors_are_refused(self) -> None:
        proto = model_from_text("g (seq(float[2]) x) => (int64 n) { n = SequenceLength(x) }")
        with pytest.raises(ModelError, match="not a tensor"):
            expected_inputs(ir.from_proto(proto))


class TestStacks:
    """One array, many samples."""

    @pytest.mark.parametrize(
        ("inputs", "shape", "samples"),
        [
            (IMAGE, (1, 3, 4, 5), 1),
            (IMAGE, (7, 3, 4, 5), 7),
            (IMAGE, (7, 1, 3, 4, 5), 7),
            (BATCH, (4, 3), 1),
            (BATCH, (12, 3), 3),
            (BATCH, (2, 4, 3), 2),
            (OPEN, (6, 3), 6),
            (OPEN, (6, 2, 3), 6),
            ([ExpectedInput("x", FLOAT, (None,))], (9,), 1),
            ([ExpectedInput("x", FLOAT, (None,))], (2, 9), 2),
            ([ExpectedInput("x", FLOAT, ())], (), 1),
            ([ExpectedInput("x", FLOAT, ())], (5,), 5),
            ([ExpectedInput("x", FLOAT, None)], (5, 2), 1),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("form", ["npy", "npz", "fortran", "memory"])
    def test_divide_into_samples(
        self, inputs: list[ExpectedInput], shape: tuple[int, ...], samples: int, form: str,
        tmp_path: Path,
    ) -> None:  # fmt: skip
        array = np.asarray(rows(1, *shape)[0])
        source: Any = tmp_path / f"data.{'npz' if form == 'npz' else 'npy'}"
        if form == "npz":
            np.savez_compressed(source, x=array)
        elif form == "memory":
            source = {"x": array}
        else:
            np.save(source, np.asfortranarray(array) if form == "fortran" else array)
        opened = open_samples(source, inputs)
        read = [feeds["x"] for feeds in opened]
        assert len(read) == opened.count == samples
        dims = inputs[0].dims
        assert dims is None or all(each.ndim == len(dims) for each in read)
        np.testing.assert_array_equal(
            np.concatenate([each.ravel() for each in read]), array.ravel()
        )

    def test_rows_that_do_not_fill_a_batch_are_left_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        np.save(tmp_path / "x.npy", rows(11, 3))
        samples = open_samples(tmp_path / "x.npy", BATCH)
        np.testing.assert_array_equal(stacked(samples), rows(11, 3)[:8])
        assert "the last 3 of 11 rows" in caplog.text

    def test_inputs_must_have_equal_numbers(self, tmp_path: Path) -> None:
        inputs = [ExpectedInput("a", FLOAT, (1, 2)), ExpectedInput("b", FLOAT, (1, 2))]
        np.savez(tmp_path / "x.npz", a=rows(5, 2), b=rows(4, 2))
        with pytest.raises(UsageError, match="5 for 'a', 4 for 'b'"):
            open_samples(tmp_path / "x.npz", inputs)

    def test_open_inputs_follow_those_that_are_fixed(self, tmp_path: Path) -> None:
        """A diffusion step beside its latents: a list of numbers, one for each."""
        inputs = [ExpectedInput("t", FLOAT, (None,)), ExpectedInput("x", FLOAT, (1, 2))]
        np.savez(tmp_path / "x.npz", t=rows(5), x=rows(5, 2))
        read = list(open_samples(tmp_path / "x.npz", inputs))
        assert [feeds["t"].shape for feeds in read] == [(1,)] * 5

    def test_a_first_axis_that_is_no_batch_leaves_one_sample(self) -> None:
        inputs = [ExpectedInput(name, FLOAT, (None, 2)) for name in "ab"]
        (feeds,) = open_samples({"a": rows(5, 2), "b": rows(3, 2)}, inputs)
        assert feeds["a"].shape == (5, 2)

    def test_a_scalar_serves_all_samples(self, tmp_path: Path) -> None:
        inputs = [ExpectedInput("x", FLOAT, (1, 4)), ExpectedInput("rate", INT64, ())]
        np.savez(tmp_path / "x.npz", x=rows(3, 4), rate=np.int64(16000))
        assert [int(feeds["rate"]) for feeds in open_samples(tmp_path / "x.npz", inputs)] == [
            16000
        ] * 3

    @given(
        batch=st.integers(1, 4), samples=st.integers(1, 5), rest=st.lists(st.integers(0, 3)),
        own_axis=st.booleans(), open_batch=st.booleans(),
    )  # fmt: skip
    def test_what_was_stacked_is_read_back(
        self, batch: int, samples: int, rest: list[int], own_axis: bool, open_batch: bool
    ) -> None:
        batch = 1 if open_batch and not own_axis else batch
        inputs = [ExpectedInput("x", FLOAT, (None if open_batch else batch, *rest, 2))]
        parts = [rows(batch, *rest, 2, seed=seed) for seed in range(samples)]
        array = np.stack(parts) if own_axis else np.concatenate(parts)
        for part, feeds in itertools.zip_longest(parts, open_samples({"x": array}, inputs)):
            np.testing.assert_array_equal(part, feeds["x"])


class TestArchives:
    def test_arrays_have_the_names_of_inputs(self, tmp_path: Path) -> None:
        ids = np.arange(12).reshape(3, 4)
        np.savez(tmp_path / "x.npz", ids=ids, mask=np.ones_like(ids))
        samples = open_samples(tmp_path / "x.npz", TEXT)
        np.testing.assert_array_equal(stacked(samples, "ids"), ids)
        assert samples.describe() == f"3 samples from {tmp_path / 'x.npz'}"

    def test_without_names_they_are_in_order(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", np.zeros((2, 4), int), np.ones((2, 4), int))
        assert (stacked(open_samples(tmp_path / "x.npz", TEXT), "mask") == 1).all()

    def test_names_with_slashes(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", **{"in/x:0": rows(2, 3)})
        assert open_samples(tmp_path / "x.npz", [ExpectedInput("in/x:0", FLOAT, (1, 3))]).count == 2

    def test_a_missing_array_is_named_with_its_likeness(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", ids=np.zeros((2, 4), int), masks=np.ones((2, 4), int))
        with pytest.raises(
            UsageError, match=r"no array for the input 'mask'; it has .*'masks'"
        ) as e:
            open_samples(tmp_path / "x.npz", TEXT)
        assert "Is it 'masks'?" in e.value.hint

    def test_an_array_too_many_is_left_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(3):
            np.savez(tmp_path / f"{number}.npz", x=rows(1, 3), label=np.zeros(1))
        assert set(open_samples(tmp_path, OPEN).first) == {"x"}
        assert caplog.text.count("no input takes label") == 1


class TestFolders:
    def test_are_read_in_natural_order(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in (10, 9, 1):
            np.save(tmp_path / f"sample{number}.npy", np.full((1, 3), number, np.float32))
        np.savez(tmp_path / "sample2.npz", x=np.full((2, 3), 2, np.float32))
        (tmp_path / "notes.txt").write_text("no data")
        with caplog.at_level(logging.INFO, "qdqtune"):
            samples = open_samples(tmp_path, OPEN)
        assert stacked(samples)[:, 0].tolist() == [1, 2, 2, 9, 10]
        assert samples.count == 5
        assert "1 other files are not read" in caplog.text

    def test_one_folder_per_input(self, tmp_path: Path) -> None:
        inputs = [ExpectedInput("a/b", FLOAT, (1, 2)), ExpectedInput("c", FLOAT, (1, 2))]
        for folder, offset in (("a_b", 0), ("c", 100)):
            (tmp_path / folder).mkdir()
            for number in (2, 10):
                value = np.full((1, 2), offset + number, np.float32)
                np.save(tmp_path / folder / f"{number}.npy", value)
        read = [(feeds["a/b"][0, 0], feeds["c"][0, 0]) for feeds in open_samples(tmp_path, inputs)]
        assert read == [(2, 102), (10, 110)]
        (tmp_path / "c" / "2.npy").unlink()
        with pytest.raises(UsageError, match="2 in a_b/, 1 in c/"):
            open_samples(tmp_path, inputs)

    @pytest.mark.parametrize("inside", [True, False])
    def test_test_data_of_onnx_models(self, tmp_path: Path, inside: bool) -> None:
        for number in range(2 if inside else 1):
            folder = tmp_path / f"test_data_set_{number}" if inside else tmp_path
            folder.mkdir(exist_ok=True)
            for position, array in enumerate((np.full((2, 4), number), np.ones((2, 4), int))):
                path = folder / f"input_{position}.pb"
                path.write_bytes(numpy_helper.from_array(array).SerializeToString())
            (folder / "output_0.pb").write_bytes(b"")
        samples = open_samples(tmp_path, TEXT)
        assert [feeds["ids"].tolist() for feeds in samples][-1] == [[int(inside)] * 4] * 2
        assert samples.count == 1 + inside

    def test_a_folder_without_data_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("no data")
        with pytest.raises(UsageError, match=r"no \.npz or \.npy files, and no images") as caught:
            open_samples(tmp_path, TEXT)
        assert "ids/, mask/" in caught.value.hint

    def test_every_file_is_checked_before_any_is_read(self, tmp_path: Path) -> None:
        for number in range(5):
            np.save(tmp_path / f"{number}.npy", rows(1, 4 if number == 4 else 3))
        with pytest.raises(UsageError, match=r"4\.npy has the shape \(1, 4\)"):
            open_samples(tmp_path, OPEN)
        assert open_samples(tmp_path, OPEN, limit=4).count == 4


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("name", "content", "what"),
        [
            ("a.npy", b"\x93NUMPY", "can't be read"),
            ("a.npy", b"not an array", "can't be read"),
            ("a.npz", b"PK not a zip file", "can't be read"),
            ("a.pb", b"not a tensor", "can't be read"),
            ("a.pb", b"", "holds no tensor"),
            ("a.csv", b"1,2,3", "neither .npz nor .npy"),
        ],
    )
    def test_are_refused(self, tmp_path: Path, name: str, content: bytes, what: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=what) as caught:
            open_samples(tmp_path / name, OPEN)
        assert caught.value.hint

    def test_a_cut_off_file_is_found_before_the_run(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", rows(9, 3))
        content = (tmp_path / "x.npy").read_bytes()
        (tmp_path / "x.npy").write_bytes(content[:-1])
        with pytest.raises(UsageError, match="cut off"):
            open_samples(tmp_path / "x.npy", OPEN)

    @pytest.mark.parametrize("suffix", ["npy", "npz"])
    def test_pickles_are_never_loaded(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"x.{suffix}"
        array = np.array([{"a": 1}], dtype=object)
        if suffix == "npy":
            np.save(path, array, allow_pickle=True)
        else:
            np.savez(path, x=array)
        with pytest.raises(UsageError, match="pickled"):
            open_samples(path, OPEN)

    def test_a_missing_file_is_guessed(self, tmp_path: Path) -> None:
        np.save(tmp_path / "images.npy", rows(1, 3))
        with pytest.raises(UsageError, match="no file or folder") as caught:
            open_samples(str(tmp_path / "image.npy"), OPEN)
        assert f"Did you mean {tmp_path / 'images.npy'}?" in caught.value.hint

    def test_one_array_does_not_serve_two_inputs(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", rows(1, 3))
        with pytest.raises(UsageError, match="one array, but the model has 2 inputs: ids, mask"):
            open_samples(tmp_path / "x.npy", TEXT)


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "advice"),
        [
            ((3, 4, 5), "array[np.newaxis]"),
            ((8, 4, 5, 3), "np.moveaxis(array, -1, 1)"),
            ((8, 3, 4, 6), "same sizes"),
            ((8, 60), "same sizes"),
        ],
    )
    def test_that_do_not_fit_come_with_advice(self, shape: tuple[int, ...], advice: str) -> None:
        with pytest.raises(UsageError, match=r"for the input 'x', which takes \(1, 3, 4, 5\)") as e:
            open_samples({"x": rows(*shape)}, IMAGE)
        assert advice in e.value.hint

    def test_less_than_a_batch(self) -> None:
        with pytest.raises(UsageError, match=r"shape \(3, 3\)") as caught:
            open_samples({"x": rows(3, 3)}, BATCH)
        assert "one batch of 4" in caught.value.hint


class TestValues:
    def feeds(self, array: Any, dtype: ir.DataType, dims: tuple[int | None, ...] = (None,)) -> Any:
        return open_samples([{"x": array}], [ExpectedInput("x", dtype, dims)]).first["x"]

    @pytest.mark.parametrize(
        ("array", "dtype"),
        [
            (np.array([1.5, -2.0]), FLOAT),
            (np.array([1.5, -2.0], ">f4"), FLOAT),
            (np.array([1.5, -2.0]), ir.DataType.FLOAT16),
            (np.array([1.5, -2.0], np.float32), ir.DataType.BFLOAT16),
            (np.array([1.5, -2.0], ml_dtypes.bfloat16), FLOAT),
            (np.array([1.5, -2.0], ml_dtypes.bfloat16), ir.DataType.BFLOAT16),
            (np.array([True, False]), FLOAT),
            (np.array([3, -4], np.int32), INT64),
            (np.array([3, -4]), ir.DataType.INT32),
            (np.array([3, 4]), ir.DataType.UINT8),
            (np.array([3.0, -4.0]), INT64),
            (np.array([0, 1]), ir.DataType.BOOL),
            (np.array([True, False]), INT64),
            (np.array([3, -4]), ir.DataType.INT4),
        ],
        ids=lambda value: str(getattr(value, "dtype", value)),
    )
    def test_are_cast_if_nothing_is_lost(self, array: np.ndarray, dtype: ir.DataType) -> None:
        cast = self.feeds(array, dtype)
        assert cast.dtype == dtype.numpy()
        assert cast.tolist() == array.tolist()

    @pytest.mark.parametrize(
        ("array", "dtype", "value"),
        [
            (np.array([1, 2**40]), ir.DataType.INT32, "1099511627776"),
            (np.array([1, -1]), ir.DataType.UINT8, "-1"),
            (np.array([2**64 - 1], np.uint64), INT64, "18446744073709551615"),
            (np.array([1.0, 0.5]), INT64, "0.5"),
            (np.array([1.0, 1e30]), INT64, "1e"),
            (np.array([1, 2]), ir.DataType.BOOL, "2"),
            (np.array([1, 9]), ir.DataType.INT4, "9"),
            (np.array([1.0, 1e6]), ir.DataType.FLOAT16, "too large for float16"),
            (np.array([1e39]), FLOAT, "too large for float32"),
        ],
    )
    def test_that_do_not_fit_are_refused(
        self, array: np.ndarray, dtype: ir.DataType, value: str
    ) -> None:
        with pytest.raises(UsageError, match=value):
            self.feeds(array, dtype)

    @pytest.mark.parametrize(
        "array", [np.array([1j]), np.array(["a"]), np.array(["2020-01-01"], "M8[D]")], ids=str
    )
    def test_that_are_no_numbers_are_refused(self, array: np.ndarray) -> None:
        with pytest.raises(UsageError, match="takes float32"):
            self.feeds(array, FLOAT)

    def test_text(self) -> None:
        assert self.feeds(np.array(["a", "bc"]), ir.DataType.STRING).tolist() == ["a", "bc"]
        with pytest.raises(UsageError, match="takes text"):
            self.feeds(np.array([1.0]), ir.DataType.STRING)

    def test_half_floats_of_the_other_kind_survive_a_file(self, tmp_path: Path) -> None:
        array = np.array([[1.5, -2.0, 3.0]], ml_dtypes.bfloat16)
        np.save(tmp_path / "x.npy", array)  # numpy keeps the bytes, not the type
        inputs = [ExpectedInput("x", ir.DataType.BFLOAT16, (1, 3))]
        assert open_samples(tmp_path / "x.npy", inputs).first["x"].tolist() == array.tolist()
        with pytest.raises(UsageError, match="takes float32"):
            open_samples(tmp_path / "x.npy", OPEN)

    @pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (-np.inf, "infinite")])
    def test_that_are_not_finite_are_refused_where_they_are(
        self, tmp_path: Path, bad: float, name: str
    ) -> None:
        array = rows(9, 3)
        array[7, 1] = bad
        np.save(tmp_path / "data.npy", array)
        samples = open_samples(tmp_path / "data.npy", OPEN)
        with pytest.raises(UsageError, match=rf"data.npy, sample 7, holds {name}.* for .* 'x'"):
            list(samples)

    def test_pixels_are_remarked_on(self, caplog: pytest.LogCaptureFixture) -> None:
        pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
        with caplog.at_level(logging.INFO, "qdqtune"):
            list(open_samples([pixels] * 3, [ExpectedInput("x", FLOAT, (4, 64))]))
        assert caplog.text.count("were they normalised?") == 1
        assert "between 0 and 255" in caplog.text

    def test_constants_are_remarked_on(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "qdqtune"):
            open_samples({"x": np.zeros((2, 3))}, OPEN)
        assert "x is 0 everywhere" in caplog.text


class Tensor:
    """What other libraries' tensors can do."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


class OnGpu:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("can't convert a tensor of another device")


class Reader:
    """An ONNX Runtime CalibrationDataReader."""

    def __init__(self) -> None:
        self.left = 3

    def get_next(self) -> dict[str, np.ndarray] | None:
        self.left -= 1
        return {"x": rows(1, 3, seed=self.left)} if self.left >= 0 else None


class Dataset:
    """A map-style dataset that never says where it ends."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> np.ndarray:
        return rows(1, 3, seed=2 - number)


def generator() -> Iterator[np.ndarray]:
    yield from (rows(1, 3, seed=2 - number) for number in range(3))


class TestPython:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: [rows(1, 3, seed=2 - number) for number in range(3)],
            lambda: [{"x": array} for array in generator()],
            lambda: [(array,) for array in generator()],
            lambda: [[Tensor(array)] for array in generator()],
            lambda: Tensor(np.concatenate(list(generator()))),
            lambda: {"x": np.concatenate(list(generator()))},
            lambda: generator,
            lambda: lambda: {"x": np.concatenate(list(generator()))},
            generator,
            Reader,
            lambda: Reader,
            Dataset,
            lambda: iter([np.concatenate(list(generator()))[:, None]]),
        ],
    )
    def test_sources_can_be_read_again(self, make: Callable[[], Any]) -> None:
        samples = open_samples(make(), OPEN)
        expected = np.concatenate(list(generator()))
        next(iter(samples))
        np.testing.assert_array_equal(stacked(samples), expected)
        np.testing.assert_array_equal(stacked(samples), expected)
        assert samples.count == 3

    def test_a_sample_is_a_batch_as_it_comes(self) -> None:
        shapes = [feeds["x"].shape for feeds in open_samples([rows(8, 3), rows(2, 3)], OPEN)]
        assert shapes == [(8, 3), (2, 3)]

    def test_batches_of_a_loader_are_divided_and_a_short_last_one_left_out(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        samples = open_samples([rows(8, 3), rows(8, 3), rows(3, 3)], BATCH)
        assert [feeds["x"].shape for feeds in samples] == [(4, 3)] * 4
        assert "item 2 of a list does not fill a batch" in caplog.text

    @pytest.mark.parametrize(
        ("item", "what"),
        [
            ((rows(1, 3), 7), "2 arrays, but the model has 1 input: x"),
            ({"y": rows(1, 3)}, "item 0 .* no array for the input 'x'; it has 'y'"),
            ({"x": None}, "NoneType for the input 'x', which is not an array"),
            (OnGpu(), "another device"),
            ([[1.0, 2.0, 3.0]], "shape"),
            (None, "not an array"),
            (rows(1, 4), r"item 0 of a list has the shape \(1, 4\)"),
        ],
    )
    def test_items_that_are_no_samples(self, item: Any, what: str) -> None:
        with pytest.raises(UsageError, match=what):
            open_samples([item], OPEN)

    @pytest.mark.parametrize("source", [7, None, object()])
    def test_sources_that_are_none(self, source: Any) -> None:
        with pytest.raises(UsageError, match="can't be taken from"):
            open_samples(source, OPEN)

    @pytest.mark.parametrize("source", [[], iter(()), lambda: iter(()), {"x": rows(0, 1, 3)}])
    def test_empty_sets(self, source: Any) -> None:
        with pytest.raises(UsageError, match="no samples"):
            open_samples(source, OPEN)

    def test_a_later_sample_is_checked_when_it_comes(self) -> None:
        samples = open_samples([rows(1, 3), rows(1, 4)], OPEN)
        with pytest.raises(UsageError, match="item 1 of a list"):
            list(samples)

    def test_a_function_that_is_used_up(self) -> None:
        once = iter([rows(1, 3)])
        samples = open_samples(lambda: once, OPEN)
        list(samples)
        with pytest.raises(UsageError, match="the first time, and none this time"):
            list(samples)


class TestLimits:
    @pytest.mark.parametrize("form", ["file", "folder", "list", "generator"])
    def test_hold_for_every_source(self, form: str, tmp_path: Path) -> None:
        array = rows(5, 3)
        for number in range(5):
            np.save(tmp_path / f"{number}.npy", array[number : number + 1])
        (tmp_path / "sub").mkdir()
        np.save(tmp_path / "sub" / "all.npy", array)
        sources = {
            "file": tmp_path / "sub" / "all.npy",
            "folder": tmp_path,
            "list": list(array[:, None]),
            "generator": iter(array[:, None]),
        }
        samples = open_samples(sources[form], OPEN, limit=3)
        for _ in range(2):
            np.testing.assert_array_equal(stacked(samples), array[:3])
        assert samples.describe().startswith("3 samples from")

    def test_an_endless_generator(self) -> None:
        endless = (rows(1, 3, seed=number) for number in itertools.count())
        assert len(list(open_samples(endless, OPEN, limit=4))) == 4

    def test_of_nothing(self) -> None:
        with pytest.raises(UsageError, match="on 0 samples"):
            open_samples([rows(1, 3)], OPEN, limit=0)

    def test_no_inputs(self) -> None:
        with pytest.raises(UsageError, match="no inputs"):
            open_samples([{}], [])

    def test_length_is_hinted_at_once_known(self) -> None:
        samples = open_samples(generator, OPEN)
        assert operator.length_hint(samples, -1) == -1
        assert samples.describe() == "samples from generator()"
        list(samples)
        assert operator.length_hint(samples, -1) == 3
        assert samples.describe() == "3 samples from generator()"


class TestMemory:
    """Any number of samples takes the memory of a few."""

    @pytest.mark.parametrize("once", [True, False])
    def test_samples_are_let_go(self, once: bool) -> None:
        live: set[int] = set()

        def make() -> Iterator[np.ndarray]:
            for number in range(200):
                array = np.full((1, 3), number, np.float32)
                live.add(number)
                weakref.finalize(array, live.discard, number)
                yield array

        most = 0
        samples = open_samples(make() if once else make, OPEN)
        for _ in samples:
            gc.collect(0)
            most = max(most, len(live))
        assert 1 <= most <= 4

    @pytest.mark.parametrize("suffix", ["npy", "npz"])
    def test_stacks_are_not_read_as_a_whole(self, tmp_path: Path, suffix: str) -> None:
        import tracemalloc

        path = tmp_path / f"x.{suffix}"
        array = np.zeros((200, 10_000), np.float32)
        np.save(path, array) if suffix == "npy" else np.savez_compressed(path, x=array)
        del array
        tracemalloc.start()
        try:
            count = sum(1 for _ in open_samples(path, [ExpectedInput("x", FLOAT, (1, 10_000))]))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert count == 200
        assert peak < 1_000_000  # the stack has eight million bytes

    def test_kept_samples_go_with_the_set(self) -> None:
        samples = open_samples(generator(), OPEN)
        folder = samples._read.__self__._folder.path  # type: ignore[attr-defined]
        list(samples)
        assert len(list(folder.iterdir())) == 3
        del samples
        gc.collect()
        assert not folder.exists()


LOADER = """
import sys
from dataclasses import dataclass
import numpy as np

@dataclass
class Row:
    value: int

def samples():
    print("loading")
    import beside
    for number in range(beside.COUNT):
        yield {"x": np.full((1, 3), Row(number).value, np.float32)}

def broken():
    yield {"x": np.zeros((1, 3), np.float32)}
    np.load("no such file.npy")

def leaves():
    sys.exit("bye")

def nothing():
    pass

def needs(argument):
    return []

NUMBER = 7
"""


class TestFunctions:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        (tmp_path / "my_loader.py").write_text(LOADER)
        (tmp_path / "beside.py").write_text("COUNT = 3\n")
        (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path)
        before = set(sys.modules)
        yield tmp_path
        for name in set(sys.modules) - before:
            del sys.modules[name]

    @pytest.mark.parametrize("spec", ["my_loader:samples", "my_loader.py:samples", "{}"])
    def test_are_found_and_called_again(
        self, folder: Path, spec: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = list(sys.path)
        spec = spec.format(folder / "my_loader.py:samples")
        samples = open_samples(spec, OPEN)
        for _ in range(2):
            assert stacked(samples)[:, 0].tolist() == [0, 1, 2]
        assert samples.describe() == f"3 samples from {spec}"
        assert sys.path == path
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == "loading\n" * 2

    def test_files_are_found_from_elsewhere(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder / "empty")
        assert open_samples("../my_loader.py:samples", OPEN).first["x"].shape == (1, 3)

    @pytest.mark.parametrize(
        ("spec", "what"),
        [
            ("no_such_module:samples", "There is no module 'no_such_module' in "),
            ("json.no_such_module:samples", r"There is no module 'json\.no_such_module' in "),
            ("os.no_such_module:samples", r"There is no module 'os\.no_such_module' in "),
            ("no_such_file.py:samples", r"no file no_such_file\.py"),
            ("my_loader:sample", "my_loader has no function 'sample'"),
            ("my_loader.py:NUMBER", "no function 'NUMBER'"),
            (
                "my_loader:leaves",
                r"my_loader:leaves failed: SystemExit: bye \(.*my_loader\.py:21\)",
            ),
            ("my_loader:nothing", "my_loader:nothing returned nothing"),
            ("my_loader:needs", "missing 1 required positional argument"),
            ("wrong:samples", r"wrong failed: SyntaxError: .*wrong\.py:2\)"),
        ],
    )
    def test_that_fail(self, folder: Path, spec: str, what: str) -> None:
        with pytest.raises(UsageError, match=what):
            open_samples(spec, OPEN)

    def test_that_fail_later_say_where(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        samples = open_samples("my_loader:broken", OPEN)
        with (
            caplog.at_level(logging.DEBUG, "qdqtune"),
            pytest.raises(UsageError, match=r"FileNotFoundError: .*my_loader\.py:18\)"),
        ):
            list(samples)
        assert "Traceback" in caplog.text
