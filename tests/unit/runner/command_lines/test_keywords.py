"""Keyword arguments of `distrun.run` become the options that the command line would have."""

from __future__ import annotations

import re

import click
import pytest

from distrun.errors import UsageError
from distrun.runner.command_lines.keywords import Keywords
from distrun.runner.command_lines.launch_options import every_launch_option


def of_command_line(*words):
    return click.Command("distrun", params=[*every_launch_option()]).make_context("distrun", [*words]).params


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({}, []),
        ({"np": 2, "hosts": "a:2"}, ["-np", "2", "-H", "a:2"]),
        ({"np": None, "elastic": False, "bootstrap": False}, []),
        ({"elastic": True, "tag_output": False}, ["--elastic", "--no-tag-output"]),
        ({"bootstrap": True, "ship": "a"}, ["--bootstrap", "", "--ship", "a"]),
        ({"bootstrap": "torch", "ship": ["a", "b"]}, ["--bootstrap", "torch", "--ship", "a", "--ship", "b"]),
        ({"cooldown": (1, 2.5), "rank_filter": [0, 1]}, ["--cooldown", "1,2.5", "--rank-filter", "0,1"]),
        ({"prefix_output_with_timestamp": True}, ["-prefix-timestamp"]),
        ({"ssh_option": ["A=1"], "ssh_identity_file": "k"}, ["--ssh-option", "A=1", "-i", "k"]),
        ({"metrics": ":9090", "live": True, "grace": 0.5}, ["--metrics", ":9090", "--live", "--grace", "0.5"]),
    ],
)
def test_keywords_are_the_options_of_a_command_line(keywords, words):
    assert Keywords().options(keywords) == of_command_line(*words)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"outptu_dir": "x"}, "distrun.run has no argument 'outptu_dir': did you mean output_dir?"),
        ({"stdin": 0}, "distrun.run has no argument 'stdin': the option of that name is for commands, so leave it out"),
        ({"exports": "A=1"}, "distrun.run has no argument 'exports': see help(distrun.run)"),
        ({"ports": "1-2"}, "distrun.run has no argument 'ports': see help(distrun.run)"),
    ],
)
def test_an_unknown_keyword_is_a_type_error_with_a_remedy(keywords, complaint):
    with pytest.raises(TypeError, match=f"^{re.escape(complaint)}$"):
        Keywords().options(keywords)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"timeout": "soon"}, "timeout='soon' is not allowed: 'soon' is not a number of seconds >= 0"),
        ({"ssh_port": 0}, "ssh_port=0 is not allowed: 0 is not in the range 1<=x<=65535"),
        ({"bind_to": "gpu"}, "bind_to='gpu' is not allowed: 'gpu' is not one of 'none', 'core', 'socket', 'numa'"),
    ],
)
def test_a_value_that_the_option_does_not_take_is_a_usage_error(keywords, complaint):
    with pytest.raises(UsageError, match=f"^{re.escape(complaint)}$"):
        Keywords().options(keywords)


@pytest.mark.parametrize(
    ("sentence", "argument"),
    [
        ("-np 3 is too many, --oversubscribe helps", "np=3 is too many, oversubscribe=True helps"),
        ("-i '/k' and -p 5 and -x 'a=1'", "ssh_identity_file='/k' and ssh_port=5 and env='a=1'"),
        ("see distrun doctor -H a, or --launcher ssh", "see distrun doctor -H a, or --launcher ssh"),
    ],
)
def test_errors_speak_of_keywords(sentence, argument):
    with pytest.raises(UsageError, match=f"^{re.escape(argument)}$"), Keywords().in_errors():
        raise UsageError(sentence)
