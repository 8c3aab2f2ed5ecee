"""Call the kernels of the library in a folder with random arrays for some seconds. Print how many calls were made."""

import ctypes
import random
import sys
import time
from pathlib import Path

import numpy as np

from distrun import native
from distrun.runtime.backends.quantisation import QUANTISERS
from distrun.runtime.operations.dtypes import _DECODE, _ENCODE, ELEMENT_TYPES
from distrun.runtime.transport.shared_memory.swap import Terms, swap_function
from distrun.tensor_fusion.packing import _PACK, _UNPACK

DIGEST = native.sources_digest()
native.sources_digest = lambda: DIGEST
native.FOLDER = Path(sys.argv[1])
native.variants = lambda: [native.BASE]
native.load()
HEADER = 7


def swap(array: np.ndarray) -> None:
    """Send an array into a ring that may be too small for it, and find an answer or something else in the other."""
    ring = 8 * random.randrange(2, 40)
    out, answer = np.zeros(ring, np.uint8), np.frombuffer(random.randbytes(ring), np.int64).copy()
    head, tail = 8 * random.randrange(100), 8 * random.randrange(100)
    if random.choice([True, False]):
        answer[tail % ring // 8], answer[(tail + 8) % ring // 8] = 8 + array.nbytes, HEADER
    words = np.array([head, head, tail + random.choice([0, 8]), tail, random.choice([0, 1])])
    places = [words[place:].ctypes.data for place in range(5)]
    where = *places[:4], out.ctypes.data, answer.ctypes.data, places[4]
    terms = Terms(*where, ring, HEADER, array.nbytes, random.choice([0, array.nbytes % 8 == 0]), 1, 0.5)
    swap_function(native.BASE)(ctypes.byref(terms), array.ctypes.data, array.ctypes.data)


end = time.monotonic() + float(sys.argv[2])
rounds = 0
while time.monotonic() < end:
    count = random.choice([0, 1, 2, 255, 256, 257, random.randrange(2000)])
    values = np.frombuffer(random.randbytes(4 * count), np.float32).copy()
    for quantiser in (kind() for kind in QUANTISERS.values()):
        feedback = random.choice([None, (np.zeros(count, np.float32), np.empty(count, np.float32))])
        raw = np.empty(quantiser.nbytes(count), np.uint8)
        quantiser.quantise(values, raw, feedback, random.choice([None, np.empty_like(values), values]))
        quantiser.restore(raw, np.empty_like(values))
        quantiser.restore(np.frombuffer(random.randbytes(raw.size), np.uint8), np.empty_like(values))
    for name in _ENCODE:
        halves = np.empty(count, ELEMENT_TYPES[name].storage)
        assert _ENCODE[name](count, values, halves)
        assert _DECODE[name](count, halves, np.empty_like(values))
    swap(np.frombuffer(random.randbytes(4 * random.randrange(60)), np.float32).copy())
    parts = [
        np.zeros(random.choice([0, 1, 16, random.randrange(300)]), np.int8) for _ in range(random.randrange(5, 40))
    ]
    whole = np.frombuffer(random.randbytes(sum(map(len, parts))), np.int8).copy()
    assert _UNPACK.moves(parts, whole)
    assert _PACK.moves(parts, again := np.empty_like(whole))
    assert (again == whole).all()
    for odd in ([parts[0].reshape(1, -1)], parts, [random.randbytes(8)], [np.array(None)]):
        assert not _PACK.moves([*parts, *odd], whole) or not sum(map(len, odd))
    rounds += 1
print(rounds)
