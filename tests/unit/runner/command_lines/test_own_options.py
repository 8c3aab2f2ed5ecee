"""An option of ours whose value may be left out."""

import pytest

from distrun.cli import distrun
from distrun.runner.command_lines.own_options import own_options, with_value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--auto python x.py --auto", "--auto=global python x.py --auto"),
        ("-np 2 --auto -H a:2 python x.py", "-np 2 --auto=global -H a:2 python x.py"),
        ("--auto=scale -np 2 python x.py --auto", "--auto=scale -np 2 python x.py --auto"),
        ("--wdir --auto x", "--wdir --auto x"),
    ],
)
def test_an_option_that_stands_alone_gets_its_value(line, expected):
    assert " ".join(with_value(own_options(distrun), line.split(), "--auto", "global")) == expected
