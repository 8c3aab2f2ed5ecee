"""The output of ranks, from task 0 to the driver: live, or what is left for the report."""

import io
import threading

import pytest

from distrun.spark.live import DriverLine, printed_live

KEY = b"k" * 32
HERE = ("127.0.0.1", "127.0.0.1")


class Stream(io.StringIO):
    """A stream that tells when it has got something."""

    def __init__(self):
        super().__init__()
        self.has_text = threading.Event()

    def write(self, text):
        count = super().write(text)
        self.has_text.set()
        return count


def test_lines_arrive_on_their_streams_in_order_and_none_is_left():
    stdout, stderr = Stream(), Stream()
    with printed_live(HERE, KEY, stdout, stderr) as driver:
        line = DriverLine(driver, KEY)
        line.send(0, b"first\n")  # before or after the driver has answered
        line.send(1, b"error\n")
        assert stdout.has_text.wait(60)
        line.send(0, b"second\n")
        assert line.close() == (b"", b"")
    assert (stdout.getvalue(), stderr.getvalue()) == ("first\nsecond\n", "error\n")


@pytest.mark.parametrize("driver", [None, ("127.0.0.1", 1)])
def test_the_last_of_what_the_driver_did_not_take_is_left_for_the_report(driver):
    line = DriverLine(driver, KEY)
    line.send(1, b"error\n")
    for _ in range(5):
        line.send(0, b"x" * 1_000_000)
    line.send(0, b"end\n")
    stdout, stderr = line.close()
    assert (len(stdout), stdout[-4:], stderr) == (1 << 20, b"end\n", b"error\n")


def test_a_driver_that_has_gone_gets_the_rest_by_the_report():
    stdout = Stream()
    with printed_live(HERE, KEY, stdout, stdout) as driver:
        line = DriverLine(driver, KEY)
        line.send(0, b"first\n")
        assert stdout.has_text.wait(60)
        line.hang_up()
    line.send(0, b"second\n")
    assert line.close() == (b"second\n", b"")
    assert stdout.getvalue() == "first\n"


def test_nothing_is_taken_from_whoever_does_not_know_the_key():
    stdout = Stream()
    with printed_live(HERE, KEY, stdout, stdout) as driver:
        line = DriverLine(driver, b"guessed")
        line.send(0, b"forged\n")
        assert line.close()[0] == b"forged\n"
    assert not stdout.getvalue()


def test_where_the_driver_cannot_listen_there_is_nobody_to_call():
    with printed_live(("192.0.2.1", "192.0.2.1"), KEY, Stream(), Stream()) as driver:
        assert driver is None
    with printed_live(None, KEY, Stream(), Stream()) as driver:
        assert driver is None
