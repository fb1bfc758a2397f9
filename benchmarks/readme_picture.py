"""The picture of the README: the head of a report, from a real run.

    python -m benchmarks.readme_picture [--model efficientnet] [--preset quick]

Tunes a zoo model and photographs the top of its report.html with headless Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.blankets import model_file
from qdqtune import tune
from qdqtune.records._errors import UsageError

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "report.png"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDTH, _MARGIN = 960, 32
# About as wide as a README is shown, and small enough to be fetched with it.
_SCALE = 0.85


def photograph(page_file: Path, target: Path) -> None:
    """Write a picture of a report from its title to the end of its first section.

    Args:
        page_file: The report.
        target: The PNG file to write.

    Raises:
        UsageError: If there is no browser.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise UsageError("No Chromium was found.", "Install it: apt-get install chromium")
    target.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(
            viewport={"width": _WIDTH, "height": 2000}, device_scale_factor=_SCALE,
            color_scheme="light",
        )  # fmt: skip
        page.goto(page_file.resolve().as_uri())
        header, section = (
            page.locator(part).first.bounding_box() for part in ("header", "main section")
        )
        assert header is not None
        assert section is not None
        top = max(0.0, header["y"] - _MARGIN)
        height = section["y"] + section["height"] - top
        page.screenshot(path=target, clip={"x": 0, "y": top, "width": _WIDTH, "height": height})
        opened.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune a model and write the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readme_picture", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", default="efficientnet", help="a zoo model with its settings")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="qdqtune-picture-") as folder:
        built = model_file(options.model, Path(folder))
        named = built.rename(built.with_name(f"{options.model.partition(':')[0]}.onnx"))
        run = Path(folder) / "run"
        result = tune(named, engine=options.engine, threads=1, preset=options.preset,
                      output_dir=run)  # fmt: skip
        print(result)
        photograph(run / "report.html", options.output)
    print(f"{options.output}: {options.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
