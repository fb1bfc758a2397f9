"""The simulated engine's options, which arrive as text."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from qdqtune.engines.simulated.noise import Noise
from qdqtune.engines.simulated.profiles import DEFAULT_PROFILE, Profile, profile_named

_NOISE_KEYS = tuple(entry.name for entry in fields(Noise))
# Options that override the profile.
_PROFILE_KEYS = ("fusion", "layout", "build_s", "build_kernel_s")
KEYS = ("profile", *_PROFILE_KEYS, "plan_cache", "seed", *_NOISE_KEYS)
"""All options."""

QUIET: dict[str, str] = {"noise": "0", "drift": "0", "spikes": "0", "offset": "0"}
"""Options with which every sample is the true latency."""


@dataclass(frozen=True)
class Settings:
    """Settings of a simulation.

    Attributes:
        profile: The machine, with overrides from options.
        seed: Seed of the noise.
        noise: How noisy the machine is.
        plan_cache: Folder that caches builds; empty for none.
    """

    profile: Profile = DEFAULT_PROFILE
    seed: int = 0
    noise: Noise = field(default_factory=Noise)
    plan_cache: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Settings:
        """Reads an engine's options.

        Raises:
            ValueError: If an option is unknown or has an invalid value.
        """
        for key in options:
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, n=1)
                guess = f" Did you mean '{near[0]}'?" if near else ""
                raise ValueError(
                    f"unknown option '{key}' of the simulated engine.{guess} "
                    f"There are: {', '.join(KEYS)}"
                )
        numbers = {key: _number(key, options[key]) for key in _NOISE_KEYS if key in options}
        seed = options.get("seed", "0")
        if not seed.isdecimal():
            raise ValueError(f"seed is '{seed}'; it is a whole number from 0 on")
        noise = Noise(**numbers)
        return cls(_profile(options), int(seed), noise, options.get("plan_cache", ""))

    def to_options(self) -> dict[str, str]:
        """Return all options as text, including defaults."""
        noise = {key: f"{value:g}" for key, value in asdict(self.noise).items()}
        machine = self.profile
        return {
            "profile": machine.name,
            "fusion": str(int(machine.fuses)),
            "layout": str(int(machine.has_layouts)),
            "build_s": f"{machine.build_s:g}",
            "build_kernel_s": f"{machine.build_kernel_s:g}",
            "seed": str(self.seed),
            "plan_cache": self.plan_cache,
            **noise,
        }


def _profile(options: Mapping[str, str]) -> Profile:
    profile = profile_named(options.get("profile", DEFAULT_PROFILE.name))
    return replace(
        profile,
        fuses=_switch(options, "fusion", default=profile.fuses),
        has_layouts=_switch(options, "layout", default=profile.has_layouts),
        build_s=_seconds(options, "build_s", profile.build_s),
        build_kernel_s=_seconds(options, "build_kernel_s", profile.build_kernel_s),
    )


def _switch(options: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = options.get(key, str(int(default)))
    if text not in ("0", "1"):
        raise ValueError(f"{key} is '{text}'; it is 0 or 1")
    return text == "1"


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    seconds = _number(key, options[key]) if key in options else default
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise ValueError(f"{key} is {options[key]}; it is a number from 0 on")
    return seconds


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key} is '{text}'; it is a number") from None
