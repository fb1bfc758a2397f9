from __future__ import annotations

import platform

import pytest

from qdqtune.engines._hardware import (
    inherited_limit,
    parse_cpuinfo,
    parse_sysctl,
    read_cpu,
    saturates_u8s8,
)

SAPPHIRE_RAPIDS = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu sse4_1 avx avx2 avx512f avx512bw avx_vnni avx512_vnni amx_bf16 amx_tile amx_int8
bugs\t\t: spectre_v1

processor\t: 1
model name\t: another
"""
CASCADE_LAKE = """\
model name : Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
flags : fpu avx avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni
"""
ALDER_LAKE = "model name\t: 12th Gen Intel(R) Core(TM) i7-12700\nflags\t\t: avx avx2 avx_vnni\n"
SKYLAKE_X = "model name\t: Intel(R) Core(TM) i9-7900X\nflags\t\t: avx avx2 avx512f avx512bw\n"
ZEN2 = "model name\t: AMD EPYC 7B12\nflags\t\t: fpu sse4_2 avx fma avx2\n"
IVY_BRIDGE = "model name\t: Intel(R) Core(TM) i5-3210M\nflags\t\t: sse4_1 avx\n"
GRAVITON2 = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp asimdrdm asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd0c
"""
RASPBERRY_PI_4 = "Features\t: fp asimd evtstrm crc32\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n"
GRAVITON3 = "Features\t: fp asimd asimddp sve i8mm bf16\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "machine", "isa", "saturates"),
    [
        (SAPPHIRE_RAPIDS, "x86_64", "amx_int8", False),
        (CASCADE_LAKE, "x86_64", "avx512_vnni", False),
        (ALDER_LAKE, "x86_64", "avx_vnni", False),
        (SKYLAKE_X, "x86_64", "avx512", True),
        (ZEN2, "x86_64", "avx2", True),
        (IVY_BRIDGE, "x86_64", "x86", True),
        ("", "x86_64", "x86", True),
        ("", "AMD64", "x86", True),
        (GRAVITON2, "aarch64", "neon_dotprod", False),
        (GRAVITON3, "aarch64", "neon_i8mm", False),
        (RASPBERRY_PI_4, "aarch64", "neon", False),
        ("", "aarch64", "neon", False),
        ("processor : 0\nisa : rv64imafdc\n", "riscv64", "riscv64", False),
    ],
)
def test_cpuinfo(text, machine, isa, saturates):
    cpu = parse_cpuinfo(text, machine)
    assert (cpu.isa, saturates_u8s8(cpu.isa)) == (isa, saturates)
    assert cpu.device


@pytest.mark.parametrize(
    ("text", "machine", "device"),
    [
        (SAPPHIRE_RAPIDS, "x86_64", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"),
        (RASPBERRY_PI_4, "aarch64", "Raspberry Pi 4 Model B Rev 1.4"),
        (GRAVITON2, "aarch64", "ARM implementer 0x41 part 0xd0c"),
        ("", "x86_64", "x86_64"),
    ],
)
def test_device(text, machine, device):
    assert parse_cpuinfo(text, machine).device == device


def test_sysctl_of_apple_silicon():
    text = (
        "machdep.cpu.brand_string: Apple M2\n"
        "hw.optional.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n"
    )
    cpu = parse_sysctl(text, "arm64")
    assert (cpu.device, cpu.isa, saturates_u8s8(cpu.isa)) == ("Apple M2", "neon_dotprod", False)


def test_sysctl_of_an_intel_mac():
    text = "machdep.cpu.brand_string: Intel(R) Core(TM) i7-8700B\nhw.optional.avx2_0: 1\n"
    cpu = parse_sysctl(text, "x86_64")
    assert (cpu.isa, saturates_u8s8(cpu.isa)) == ("avx2", True)


def test_this_machine():
    cpu = read_cpu()
    assert cpu.device
    if platform.machine() == "x86_64":
        assert cpu.isa in {"amx_int8", "avx512_vnni", "avx_vnni", "avx512", "avx2", "x86"}


@pytest.mark.parametrize("isa", ["amx_int8", "avx512_vnni", "avx_vnni", "neon", "unknown", ""])
def test_only_old_x86_saturates(isa):
    assert not saturates_u8s8(isa)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("AVX2", "", ("FIRST", "AVX2")),
        ("", "avx512_core", ("SECOND", "AVX512_CORE")),
        ("AVX2", "AVX512_CORE", ("FIRST", "AVX2")),
        ("ALL", "AVX2", ("", "")),
        ("nonsense", "AVX2", ("", "")),
        ("", "DEFAULT", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_the_first_variable_that_says_anything_counts(first, second, found, monkeypatch):
    monkeypatch.setenv("FIRST", first)
    monkeypatch.setenv("SECOND", second)
    assert inherited_limit(["UNSET", "FIRST", "SECOND"]) == found
