"""Kernels compiled from C touch only the arrays they are given, and do nothing that C leaves undefined."""

import platform
import subprocess
import sys
from pathlib import Path

from distrun import native

PROGRAM = Path(__file__).parent / "programs" / "fuzz.py"
SECONDS = 10


def test_address_and_undefined_behaviour_sanitizers_find_nothing(tmp_path):
    library = tmp_path / native.path(platform.machine()).name
    digest = tmp_path / "digest.c"
    digest.write_text(f'const char digest[] = "{native.sources_digest()}";')
    sources = [*map(str, native.FOLDER.glob("*.c")), str(digest)]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-ffp-contract=off"]
    flags = ["-mf16c"] if platform.machine() == "x86_64" else []
    command = ["gcc", "-shared", "-fPIC", "-DVARIANT=_base", *sanitizers, *flags, "-o", str(library), *sources]
    subprocess.run(command, check=True, timeout=120)
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), str(SECONDS)],
        env={"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=20 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
