"""Images as calibration data: prepared as the model gets them in use, or refused with a reason."""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from PIL import Image

import qdqtune
from qdqtune._command_configs import CompareConfig
from qdqtune._image_config import ImageConfig
from qdqtune.calibration._sample_set import ExpectedInput, open_samples
from qdqtune.cli._flags import config_from
from qdqtune.cli.main import get_parser, main
from qdqtune.records._errors import LimitError, UsageError
from tests.conftest import model_from_text

FLOAT, UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RAW: dict[str, Any] = {"image_scale": 1}


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colors with some noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = np.stack([rows * 3, columns * 2, rows + columns], -1) % 200
    return (waves + rng.integers(0, 55, waves.shape)).astype(np.uint8)


def taking(*dims: int | None, dtype: ir.DataType = FLOAT) -> list[ExpectedInput]:
    return [ExpectedInput("x", dtype, dims)]


def one(path: Path, inputs: list[ExpectedInput], **options: Any) -> np.ndarray:
    return open_samples(path, inputs, images=ImageConfig(**options)).first["x"]


def saved(folder: Path, array: np.ndarray, name: str = "a.png", **how: Any) -> Path:
    Image.fromarray(array).save(folder / name, **how)
    return folder / name


def shrunk(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """A linear filter as wide as the reduction, along one axis: the definition of the resizing."""
    length = array.shape[axis]
    ratio = length / size
    centers = (np.arange(size) + 0.5) * ratio
    distance = np.abs(np.arange(length) + 0.5 - centers[:, None]) / max(ratio, 1.0)
    weights = np.maximum(0, 1 - distance)
    weights /= weights.sum(1, keepdims=True)
    return np.moveaxis(np.tensordot(weights, array.astype(float), (1, axis)), 0, axis)


def test_the_usual_preprocessing_of_classifiers(tmp_path: Path) -> None:
    array = pixels(120, 90)
    path = saved(tmp_path, array)
    found = one(path, taking(1, 3, 56, 56), image_mean=MEAN, image_std=STD)
    # 56 / 0.875 = 64 wide, 120 * 64 / 90 = 85.3 high; the middle 56 rows of 85 and columns of 64
    resized = shrunk(shrunk(array, 64, 1), 85, 0)
    cropped = resized[14 : 14 + 56, 4 : 4 + 56] / 255
    wanted = np.moveaxis((cropped - MEAN) / STD, -1, 0)[None]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1.5 / 255 / min(STD))


@pytest.mark.parametrize(
    ("dims", "options"),
    [((1, 3, 4, 5), {}), ((1, 4, 5, 3), {}), ((None, 4, 5, 3), {}), ((None, None, 4, 5), {}),
     ((1, 3, None, None), {"image_size": (4, 5)}), ((None,) * 4, {"image_size": (4, 5)}),
     ((None,) * 4, {"image_size": (4, 5), "image_layout": "nhwc"})],
)  # fmt: skip
def test_layouts_and_open_sizes(
    dims: tuple[int | None, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    array = pixels(4, 5)
    found = one(saved(tmp_path, array), taking(*dims), image_resize="stretch", **RAW, **options)
    is_last = dims[-1] == 3 or "image_layout" in options
    np.testing.assert_array_equal(found[0], array if is_last else np.moveaxis(array, -1, 0))


def test_scale_mean_std_and_channel_order(tmp_path: Path) -> None:
    array = pixels(4, 4)
    path = saved(tmp_path, array)
    found = one(
        path, taking(1, 4, 4, 3), image_resize="stretch", image_scale=0.5, image_mean=(1, 2, 3),
        image_std=2, image_channel_order="bgr",
    )  # fmt: skip
    np.testing.assert_allclose(found[0], (array[..., ::-1] * 0.5 - (1, 2, 3)) / 2, rtol=1e-6)


def test_integer_inputs_get_raw_pixels(tmp_path: Path) -> None:
    array = pixels(4, 4)
    path = saved(tmp_path, array)
    inputs = taking(1, 4, 4, 3, dtype=UINT8)
    found = one(path, inputs, image_resize="stretch")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], array)
    with pytest.raises(UsageError, match="takes uint8, so that pixels are fed as they are") as e:
        one(path, inputs, image_mean=0.5)
    assert "Leave --image_mean out" in e.value.hint


def test_padding_keeps_the_aspect_ratio(tmp_path: Path) -> None:
    array = np.full((10, 20, 3), 250, np.uint8)
    found = one(saved(tmp_path, array), taking(1, 3, 8, 8), image_resize="pad", **RAW)[0]
    assert (found[:, 2:6] == 250).all()
    assert (found[:, :2] == 114).all()
    assert (found[:, 6:] == 114).all()


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic", "lanczos"])
def test_interpolations_differ(interpolation: str, tmp_path: Path) -> None:
    path = saved(tmp_path, pixels(30, 30))
    usual = one(path, taking(1, 3, 8, 8), **RAW)
    assert (one(path, taking(1, 3, 8, 8), image_interpolation=interpolation, **RAW) != usual).any()


class TestForms:
    """Images that are not simply red, green and blue."""

    def read(self, path: Path, channels: int = 3) -> np.ndarray:
        with Image.open(path) as image:
            width, height = image.size
        dims = taking(1, height, width, channels)
        return one(path, dims, image_resize="stretch", **RAW)[0]

    def test_rotated_by_exif(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6  # turn it clockwise
        array = pixels(4, 6)
        path = saved(tmp_path, array, exif=exif)
        found = one(path, taking(1, 6, 4, 3), image_resize="stretch", **RAW)[0]
        np.testing.assert_array_equal(found, np.rot90(array, -1))

    def test_gray_for_colors(self, tmp_path: Path) -> None:
        gray = pixels(4, 5)[..., 0]
        np.testing.assert_array_equal(
            self.read(saved(tmp_path, gray)), np.repeat(gray[..., None], 3, 2)
        )

    def test_colors_for_gray(self, tmp_path: Path) -> None:
        array = pixels(4, 5)
        found = self.read(saved(tmp_path, array), 1)
        np.testing.assert_allclose(found[..., 0], array @ (0.299, 0.587, 0.114), atol=1)

    def test_alpha_is_left_out(self, tmp_path: Path) -> None:
        array = np.concatenate([pixels(4, 5), pixels(4, 5, 1)[..., :1]], -1)
        np.testing.assert_array_equal(self.read(saved(tmp_path, array)), array[..., :3])

    @pytest.mark.parametrize("transparency", [None, b"\0" * 8])
    def test_palettes(self, transparency: bytes | None, tmp_path: Path) -> None:
        image = Image.fromarray(pixels(4, 5)).quantize(8)
        options = {} if transparency is None else {"transparency": transparency}
        image.save(tmp_path / "a.png", **options)
        np.testing.assert_array_equal(
            self.read(tmp_path / "a.png"), np.asarray(image.convert("RGB"))
        )

    def test_sixteen_bits(self, tmp_path: Path) -> None:
        gray = (np.arange(20, dtype=np.uint16) * 3000).reshape(4, 5)
        found = self.read(saved(tmp_path, gray), 1)
        np.testing.assert_array_equal(found[..., 0], gray >> 8)

    def test_cmyk(self, tmp_path: Path) -> None:
        Image.fromarray(pixels(8, 8)).convert("CMYK").save(tmp_path / "a.jpg", quality=100)
        np.testing.assert_allclose(self.read(tmp_path / "a.jpg"), pixels(8, 8), atol=90)


class TestFolders:
    def levels(self, folder: Path, *dims: int | None, limit: int | None = None) -> list[list[int]]:
        samples = open_samples(folder, taking(*dims), images=ImageConfig(**RAW), limit=limit)
        twice = [[feeds["x"][:, 0, 0, 0].tolist() for feeds in samples] for _ in range(2)]
        assert twice[0] == twice[1]
        assert samples.count == len(twice[0])
        return twice[0]

    def fill(self, folder: Path, names: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        for level, name in enumerate(names):
            saved(folder, np.full((2, 2, 3), 10 * level, np.uint8), name)

    def test_are_read_in_natural_order(self, tmp_path: Path) -> None:
        self.fill(tmp_path, ["2.png", "10.PNG", "1.bmp", ".3.png"])
        (tmp_path / "notes.txt").write_text("not an image")
        assert self.levels(tmp_path, 1, 3, 2, 2) == [[20], [0], [10]]
        assert self.levels(tmp_path, None, 3, 2, 2, limit=2) == [[20], [0]]

    def test_fixed_batches(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.fill(tmp_path, [f"{number}.png" for number in range(5)])
        assert self.levels(tmp_path, 2, 3, 2, 2) == [[0, 10], [20, 30]]
        assert "the last 1 images don't fill a batch of 2" in caplog.text
        with pytest.raises(UsageError, match="has 5 images, but the model takes 8 at once"):
            self.levels(tmp_path, 8, 3, 2, 2)

    def test_files_that_are_not_read_are_named(self, tmp_path: Path) -> None:
        for name in ("a.webp", "b.tif", "c.webp"):
            (tmp_path / name).write_bytes(b"")
        with pytest.raises(UsageError, match="no images, but 3 files with other endings") as caught:
            self.levels(tmp_path, 1, 3, 2, 2)
        assert "(.webp, .tif); of images, .jpg, .jpeg, .png and .bmp are read." in str(caught.value)

    def test_classes_take_turns(self, tmp_path: Path) -> None:
        for name in ("cat", "dog"):
            self.fill(tmp_path / name, ["0.png", "1.png"] if name == "cat" else ["0.png"])
        assert self.levels(tmp_path, 1, 3, 2, 2) == [[0], [0], [10]]

    def test_arrays_go_first(self, tmp_path: Path) -> None:
        self.fill(tmp_path, ["0.png"])
        np.save(tmp_path / "a.npy", np.full((1, 3, 2, 2), 7, np.float32))
        assert self.levels(tmp_path, 1, 3, 2, 2) == [[7]]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
    def test_links_lead_to_images_only(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "real", ["0.png"])
        folder = tmp_path / "linked"
        folder.mkdir()
        (folder / "0.png").symlink_to(tmp_path / "real" / "0.png")
        (folder / "1.png").symlink_to("/dev/zero")
        (folder / "2.png").symlink_to(folder / "2.png")
        (folder / "inside").symlink_to(folder)
        os.mkfifo(folder / "3.png")
        assert self.levels(folder, 1, 3, 2, 2) == [[0]]
        (folder / "0.png").unlink()
        with pytest.raises(UsageError, match="and no images"):
            self.levels(folder, 1, 3, 2, 2)


class TestRefused:
    def refused(self, path: Path, what: str, *dims: int | None, **options: Any) -> UsageError:
        with pytest.raises(UsageError, match=what) as caught:
            list(open_samples(path, taking(*dims), images=ImageConfig(**(options or RAW))))
        return caught.value

    def test_no_normalization_is_assumed(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(4, 4))
        error = self.refused(path, "normalized for the input 'x' is not", 1, 3, 4, 4, image_size=4)
        assert "--image_mean 0.485,0.456,0.406" in error.hint

    @pytest.mark.parametrize(
        ("dims", "what"),
        [((1, 4, 8, 8), r"\(1, 4, 8, 8\), where no axis has the 3 or 1 channels"),
         ((8, 8, 3), "with 3 axes"), ((1, 3, None, None), "images of any size")],
    )  # fmt: skip
    def test_inputs_that_take_no_images(
        self, dims: tuple[int | None, ...], what: str, tmp_path: Path
    ) -> None:
        self.refused(saved(tmp_path, pixels(4, 4)), what, *dims)

    def test_channels_of_a_named_layout(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(4, 4))
        self.refused(path, "takes 4 channels", 1, 4, 8, 8, image_layout="nchw", image_mean=0)
        self.refused(
            path, "3 values of --image_mean, but .* 1 channel", 1, 1, 4, 4, image_mean=MEAN
        )

    def test_several_inputs(self, tmp_path: Path) -> None:
        inputs = [*taking(1, 3, 4, 4), ExpectedInput("y", FLOAT, (1, 3, 4, 4))]
        with pytest.raises(UsageError, match="feed one input, but the model has 2: x, y"):
            open_samples(saved(tmp_path, pixels(4, 4)), inputs)

    def test_another_size_than_the_model_has(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(4, 4))
        self.refused(path, r"has the shape \(1, 3, 8, 8\)", 1, 3, 4, 4, image_size=8, **RAW)
        self.refused(path, "can't be taken", 1, 3, 4, 4, image_shortest_edge=3, **RAW)

    def test_broken_images_are_named(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(40, 40), "cut.jpg")
        path.write_bytes(path.read_bytes()[:-200])
        self.refused(tmp_path, r"cut\.jpg can't be read: image file is truncated", 1, 3, 4, 4)
        path.write_text("no image")
        self.refused(tmp_path, r"cut\.jpg can't be read: it is not a JPEG", 1, 3, 4, 4)
        path.write_bytes(b"")
        self.refused(tmp_path, r"cut\.jpg can't be read", 1, 3, 4, 4)

    def test_every_header_is_checked_first(self, tmp_path: Path) -> None:
        for number in range(3):
            saved(tmp_path, pixels(4, 4), f"{number}.png")
        (tmp_path / "2.png").write_text("no image")
        with pytest.raises(UsageError, match=r"2\.png can't be read"):
            open_samples(tmp_path, taking(1, 3, 4, 4), images=ImageConfig(**RAW))

    @pytest.mark.parametrize("side", [1 << 14, 1 << 20])
    def test_decompression_bombs(self, side: int, tmp_path: Path) -> None:
        def chunk(kind: bytes, body: bytes) -> bytes:
            check = zlib.crc32(kind + body)
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
        (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
        error = self.refused(tmp_path, r"bomb\.png has more than 67,108,864 pixels", 1, 3, 4, 4)
        assert isinstance(error, LimitError)

    def test_thin_images_are_not_blown_up(self, tmp_path: Path) -> None:
        path = saved(tmp_path, np.zeros((1, 50_000), np.uint8))
        error = self.refused(path, "the shorter side enlarged", 1, 3, 64, 64)
        assert isinstance(error, LimitError)
        assert one(path, taking(1, 3, 64, 64), image_resize="stretch", **RAW).shape[-1] == 64

    def test_without_pillow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = saved(tmp_path, pixels(4, 4))
        monkeypatch.setitem(sys.modules, "PIL", None)
        error = self.refused(path, "Pillow, which is not installed", 1, 3, 4, 4)
        assert "qdqtune[images]" in error.hint


TIMM = {"input_size": [3, 8, 8], "mean": list(MEAN), "std": list(STD), "interpolation": "bicubic",
        "crop_pct": 0.8}  # fmt: skip
VIT = {"do_resize": True, "size": {"height": 8, "width": 8}, "resample": 3, "image_mean": [0.5] * 3,
       "image_std": [0.5] * 3}  # fmt: skip
CLIP = {"size": {"shortest_edge": 10}, "crop_size": {"height": 8, "width": 8}, "resample": 3,
        "do_center_crop": True, "image_mean": list(MEAN), "image_std": list(STD)}  # fmt: skip
AS_CLIP = {"image_interpolation": "bicubic", "image_shortest_edge": 10, "image_mean": MEAN,
           "image_std": STD}  # fmt: skip
HALVES = {"image_mean": 0.5, "image_std": 0.5}


class TestPreprocessorFiles:
    @pytest.mark.parametrize(
        ("body", "options"),
        [
            (TIMM, AS_CLIP),
            ({"pretrained_cfg": TIMM}, AS_CLIP),
            ({"pretrained_cfg": TIMM | {"crop_mode": "squash"}},
             AS_CLIP | {"image_resize": "stretch"}),
            (CLIP, AS_CLIP),
            (CLIP | {"size": 10, "crop_size": 8}, AS_CLIP),
            (CLIP | {"size": {"height": 10, "width": 10}}, AS_CLIP | {"image_resize": "stretch"}),
            ({"image_processor": CLIP}, AS_CLIP),
            (VIT, HALVES | {"image_resize": "stretch", "image_interpolation": "bicubic"}),
            (VIT | {"size": 8, "resample": 2}, HALVES | {"image_resize": "stretch"}),
            ({"size": {"shortest_edge": 8}, "crop_pct": 0.8, "image_mean": MEAN, "image_std": STD,
              "resample": 3}, AS_CLIP),
            ({"size": {"shortest_edge": 10}, "do_center_crop": True, "crop_size": 8,
              "do_flip_channel_order": True, "do_rescale": False, "do_normalize": False,
              "image_mean": MEAN},
             {"image_shortest_edge": 10, "image_channel_order": "bgr", "image_scale": 1}),
            ({"size": 8, "do_resize": False, "rescale_factor": 0.5, "image_mean": 1,
              "image_std": 2}, {"image_scale": 0.5, "image_mean": 1, "image_std": 2}),
        ],
    )  # fmt: skip
    def test_mean_the_same_as_flags(
        self, body: dict[str, Any], options: dict[str, Any], tmp_path: Path
    ) -> None:
        path = saved(tmp_path, pixels(20, 30))
        (tmp_path / "p.json").write_text(json.dumps(body))
        found = one(path, taking(1, 3, 8, 8), image_preprocessor=tmp_path / "p.json")
        np.testing.assert_array_equal(found, one(path, taking(1, 3, 8, 8), **options))

    def test_give_the_size_of_an_open_model(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(20, 30))
        (tmp_path / "p.json").write_text(json.dumps(CLIP))
        options = {"image_preprocessor": tmp_path / "p.json"}
        assert one(path, taking(*[None] * 4), **options).shape == (1, 3, 8, 8)
        assert one(path, taking(*[None] * 4), image_size=6, **options).shape == (1, 3, 6, 6)

    def test_flags_go_before_them_and_crops_keep_their_share(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(40, 60))
        (tmp_path / "p.json").write_text(json.dumps(CLIP))
        found = one(
            path, taking(1, 3, 16, 16), image_preprocessor=tmp_path / "p.json", **HALVES
        )  # fmt: skip
        options = AS_CLIP | HALVES | {"image_shortest_edge": 20}
        np.testing.assert_array_equal(found, one(path, taking(1, 3, 16, 16), **options))

    @pytest.mark.parametrize(
        ("content", "what"),
        [("{", "can't be used"), ("[]", "not a JSON object"), ("{}", "nothing about images"),
         ('{"size": -1}', "size.height is not a whole number"),
         ('{"size": 8, "image_mean": ["a"]}', "image_mean is not a finite number"),
         ('{"size": 8, "image_mean": 0, "image_std": [0, 1, 1]}', "image_std can't be"),
         ('{"input_size": [3, 8], "mean": 0, "std": 1}', "can't be used"),
         ('{"input_size": [3, 8, 8], "mean": 0, "std": 1, "crop_mode": "border"}', "border"),
         ('{"input_size": [3, 8, 8], "mean": 0, "std": 1, "crop_pct": 1e-9}', "crop_pct can't"),
         ("[" * 200_000, "nested too deeply")],
    )  # fmt: skip
    def test_that_say_something_else(self, content: str, what: str, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(4, 4))
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(UsageError, match=what) as caught:
            one(path, taking(1, 3, 4, 4), image_preprocessor=tmp_path / "p.json")
        assert "p.json" in caught.value.what
        with pytest.raises(UsageError, match=r"no\.json can't be used: No such file"):
            one(path, taking(1, 3, 4, 4), image_preprocessor=tmp_path / "no.json")

    @pytest.mark.parametrize(
        ("model", "file"),
        [("m/model.onnx", "m/preprocessor_config.json"), ("m/model.onnx", "m/config.json"),
         ("m/onnx/model.onnx", "m/preprocessor_config.json")],
    )  # fmt: skip
    def test_are_found_beside_the_model(self, model: str, file: str, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(20, 30))
        (tmp_path / "m" / "onnx").mkdir(parents=True)
        body = {"pretrained_cfg": TIMM} if "/config" in file else CLIP
        (tmp_path / file).write_text(json.dumps(body))
        samples = open_samples(path, taking(1, 3, 8, 8), model=tmp_path / model)
        np.testing.assert_array_equal(samples.first["x"], one(path, taking(1, 3, 8, 8), **AS_CLIP))

    def test_a_config_of_something_else_is_no_preprocessor_file(self, tmp_path: Path) -> None:
        path = saved(tmp_path, pixels(20, 30))
        (tmp_path / "config.json").write_text('{"hidden_size": 768}')
        with pytest.raises(UsageError, match="is not known"):
            open_samples(path, taking(1, 3, 8, 8), model=tmp_path / "model.onnx")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { y = Conv<kernel_shape=[1,1]>(x, w) }"
    weight = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    onnx.save(model_from_text(text, w=weight), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_the_commands_that_take_data_take_images(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    for number in range(3):
        saved(tmp_path / "images", pixels(20, 30, number), f"{number}.png")
    data = ["--calibration_data", str(tmp_path / "images"), "--image_mean", "0.5,0.4,0.3"]
    out = str(tmp_path / "out.onnx")
    assert main(["insert", str(model), "--ops", "Conv", *data, "-o", out]) == 0
    assert "3 samples" in capsys.readouterr().out
    verify = ["verify", out, "--against", str(model), "--runs", "2", "--threads", "1"]
    for words in (["compare", str(model), out], verify):
        assert main([*words, *data, "--format", "json"]) == 0
        assert "3 samples" in capsys.readouterr().out or words is verify
    assert main(["insert", str(model), "--ops", "Conv", *data[:2], "-o", out, "--force"]) == 2
    assert "--image_mean" in capsys.readouterr().err


def test_options_are_written_as_flags() -> None:
    config = ImageConfig(image_size=(4, 5), image_mean=(0.5, 0.25), image_std=2, image_resize="pad")
    flags = [word for pair in config.image_flags() for word in pair]
    options = get_parser().parse_args(["compare", "a.onnx", "b.onnx", *flags])
    found = config_from(options, CompareConfig)
    for name in ("image_size", "image_mean", "image_resize", "image_layout"):
        assert getattr(found, name) == getattr(config, name)
    assert found.image_std == (2.0,)


def test_python_takes_images(model: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, pixels(20, 30))
    report = qdqtune.insert(
        onnx.load(model), ops=["Conv"], calibration_data=path, image_mean=0,
        engine="onnxruntime", calibration_method="max",
    )  # fmt: skip
    fed = one(path, taking(1, 3, 8, 8), image_mean=0)
    scales = [
        float(onnx.numpy_helper.to_array(each))
        for each in report.model.graph.initializer
        if not each.dims and each.data_type == onnx.TensorProto.FLOAT
    ]
    assert any(scale == pytest.approx(fed.max() / 255, rel=1e-3) for scale in scales)
