"""The settings file: options of launches in distrun.toml, or under [tool.distrun] in pyproject.toml, with profiles.

`launch_options` looks for it. A launch without one does not import this module.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from distrun.errors import UsageError

_NOT_IN_FILES = ("--profile", "--version", "--check-build", "--dry-run", "--help")
_ALTERNATIVES = {"hosts": "hostfile", "hostfile": "hosts", "auto": "horovod", "horovod": "auto"}
"""Options of which a launch has one: what is closer to the command line takes the place of the other."""
VARIABLES = {
    name: f"DISTRUN_{name.upper()}"
    for name in (
        *("algorithm", "autotune", "autotune_wire_dtypes", "encrypt", "keepalive", "network", "ports", "scalars"),
        *("share_gpus", "stall_timeout", "stall_warning", "start_timeout", "torch_backend", "wire_dtype"),
        *("timeline", "timeline_limit", "timeline_mark_cycles", "timeline_operations", "timeline_steps"),
    )
} | {"autotune_log_file": "DISTRUN_AUTOTUNE_LOG"}
"""The variable that means the same as an option, for each that has one."""
_NUMBERS = (click.types.IntParamType, click.types.FloatParamType, click.types.FuncParamType)
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:$|_)", re.IGNORECASE)


class Settings:
    """The options that a file gives to a launch, of which a profile's win over those for all launches."""

    def __init__(self, file: str, profile: str | None) -> None:
        self._file = os.path.relpath(file)
        self._folder = os.path.dirname(os.path.abspath(file))
        self._profile = profile
        self.values: dict[str, Any] = {}
        """The values by the names of click's parameters, as texts that click converts."""
        self._origins: dict[str, tuple[str, str]] = {}  # by the same names: the key, and where it stands
        self._numbers: set[str] = set()  # the same names, of options whose values are numbers

    def take(self, table: Mapping[str, Any], prefix: str, origin: str, options: Sequence[click.Option]) -> None:
        """Take the values of a table.

        Raises:
            UsageError: a key or a value is not allowed.
        """
        for key, value in table.items():
            where = f"{self._file}, {prefix}{key}"
            if isinstance(value, dict):
                raise UsageError(
                    f"{where} is a table and no option: options stand at the top, and in [{prefix}profiles.NAME]"
                )
            option = _option(key, options, where)
            name = str(option.name)
            if self._origins.get(name, ("", ""))[1] == origin:
                raise UsageError(f"{where}: {self._origins[name][0]} is the same option: keep one of them")
            texts = _checked(option, value, where)
            if os.environ.get(VARIABLES.get(name, "")):
                continue
            other = _ALTERNATIVES.get(name, "")
            if self._origins.get(other, ("", origin))[1] != origin:  # else the launch refuses the two
                self.forget(other)
            self._origins[name] = key, origin
            self._numbers |= {name} if isinstance(option.type, _NUMBERS) else set()
            if option.multiple:
                self.values[name] = (*self.values.get(name, ()), *(self._placed(option, text) for text in texts))
            else:
                self.values[name] = self._placed(option, texts)

    def forget(self, name: str) -> None:
        """Forget an option."""
        self.values.pop(name, None)
        self._origins.pop(name, None)

    def complete(self, context: click.Context, options: dict[str, Any]) -> None:
        """Let the options of the command line win over the file's, and tell which of these are left.

        Repeated options add up, the file's first.
        """
        for name, value in list(self.values.items()):
            others = (name, _ALTERNATIVES.get(name, name))
            if ParameterSource.COMMANDLINE not in map(context.get_parameter_source, others):
                continue
            if isinstance(value, tuple):
                options[name] = (*value, *options[name])
                continue
            if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                options[name] = False if isinstance(value, bool) else None
            self.forget(name)
        if not self.values:
            return
        if options["dry_run"]:
            lines = [f"  {text} ({self._origins[name][1]})" for name, text in self._shown()]
            click.echo("\n".join([f"settings of {self._file}:", *lines]))
        elif context.get_parameter_source("quiet") is not ParameterSource.COMMANDLINE:
            profile = f", profile {self._profile}" if self._profile else ""
            click.echo(
                f"distrun: settings of {self._file}{profile}: {', '.join(text for _, text in self._shown())}", err=True
            )

    def _shown(self) -> Iterable[tuple[str, str]]:
        for name, value in self.values.items():
            if name == "exports":
                value = [text.partition("=")[0] for text in value]
            elif value is None:
                value = False
            shown = value if name in self._numbers else json.dumps(value, ensure_ascii=False)
            yield name, f"{self._origins[name][0]} = {shown}"

    def _placed(self, option: click.Option, value: Any) -> Any:
        """Return a path as it is meant: from the file's folder, and ~ as the home."""
        metavar = option.metavar or ""
        if not isinstance(value, str) or not metavar.startswith(("FILE", "DIR", "SCRIPT")):
            return value
        if metavar == "SCRIPT" and not value.startswith(("./", "../", "~")):
            return value
        path = os.path.expanduser(value)
        return path if self._folder == os.getcwd() else os.path.join(self._folder, path)


def read(files: Iterable[str], profile: str | None, options: Sequence[click.Option]) -> Settings | None:
    """Return the settings of the nearest file that has any, or None.

    Args:
        files: the files that there are, the nearest first.
        profile: the profile that the command line names. None = none.
        options: the options that a file may have.

    Raises:
        UsageError: the file cannot be read, or is wrong, or there is no such profile.
    """
    file, table, prefix = _nearest(files)
    if table is None:
        if profile is None:
            return None
        raise UsageError(
            f"--profile {profile}: no settings file is here or above: write [profiles.{profile}] into distrun.toml, or "
            f"[tool.distrun.profiles.{profile}] into pyproject.toml"
        )
    profiles = table.pop("profiles", {})
    name = f"{os.path.relpath(file)}, {prefix}profiles"
    if not isinstance(profiles, dict) or not all(isinstance(one, dict) for one in profiles.values()):
        raise UsageError(f"{name} has something that is no profile: write [{prefix}profiles.NAME], and options below")
    if "none" in profiles:
        raise UsageError(f"{name}.none: --profile none reads no file: give the profile another name")
    settings = Settings(file, profile)
    settings.take(table, prefix, "for all launches", options)
    if profile is not None:
        if profile not in profiles:
            from distrun.runner.command_lines.translate import nearest

            near = nearest(profile, profiles, 0.6)
            known = f"did you mean {near}?" if near else f"there are {', '.join(profiles) or 'no profiles'}"
            raise UsageError(f"{os.path.relpath(file)} has no profile {profile!r}: {known}")
        settings.take(profiles[profile], f"{prefix}profiles.{profile}.", f"profile {profile}", options)
    return settings if settings.values else None


def profiles_of(files: Iterable[str]) -> list[str]:
    """Return the names of the profiles that a command line may choose, for completion.

    Raises:
        UsageError: the file cannot be read, or is wrong.
    """
    _, table, _ = _nearest(files)
    return ["none", *((table or {}).get("profiles") or {})]


def _nearest(files: Iterable[str]) -> tuple[str, dict[str, Any] | None, str]:
    """Return the nearest file that has settings, these, and what keys begin with. None = there is no such file."""
    found: tuple[str, dict[str, Any] | None, str] = "", None, ""
    for file in files:
        if found[0] and os.path.dirname(file) != os.path.dirname(found[0]):
            break
        table, prefix = _table(file)
        if table is not None and found[0]:
            raise UsageError(
                f"{os.path.relpath(found[0])} and {os.path.relpath(file)} both have settings: keep them in one"
            )
        if table is not None:
            found = file, table, prefix
    return found


def _table(file: str) -> tuple[dict[str, Any] | None, str]:
    """Return the settings of a file, None if it has none, and what their keys begin with."""
    shown = os.path.relpath(file)
    is_own = os.path.basename(file) == "distrun.toml"
    try:
        text = Path(file).read_text("utf-8")
        owner = os.stat(file).st_uid
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{shown} cannot be read: {reason}; correct that, or give --profile none") from None
    parser = _parser()
    if parser is None:
        if not is_own and not re.search(r"^\s*\[\s*tool\s*\.\s*distrun\b", text, re.MULTILINE):
            return None, ""
        raise UsageError(f"{shown} has settings, which this Python cannot read by itself: pip install tomli")
    try:
        table = parser.loads(text)
    except ValueError as error:
        raise UsageError(f"{shown} is no TOML: {error}; correct it, or give --profile none") from None
    if not is_own:
        table = table.get("tool", {}).get("distrun")
        if table is None:
            return None, ""
    if not isinstance(table, dict):
        raise UsageError(f"{shown}, tool.distrun is no table: write [tool.distrun], and options below")
    if owner not in (0, os.getuid(), os.stat(".").st_uid):
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = f"user id {owner}"
        raise UsageError(f"{shown} belongs to {user}, and could start anything: copy it, or give --profile none")
    return table, "" if is_own else "tool.distrun."


def _parser() -> Any:
    """Return the parser of TOML: Python's own from 3.11 on, else tomli, or None."""
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    return None


def _option(key: str, options: Sequence[click.Option], where: str) -> click.Option:
    """Return the option that a key means."""
    wanted = key.replace("_", "-")
    spellings = {f"-{wanted}", f"--{wanted}"}
    if spellings & {*_NOT_IN_FILES}:
        raise UsageError(f"{where}: this option is for the command line: remove it")
    for option in options:
        if spellings & {*option.opts}:
            return option
        if spellings & {*option.secondary_opts}:
            raise UsageError(f"{where}: write {option.opts[0].lstrip('-')} = false")
    from distrun.runner.command_lines.borrowed import elsewhere
    from distrun.runner.command_lines.translate import nearest

    meant = elsewhere(f"--{wanted}") or nearest(
        wanted, [name.lstrip("-") for one in options for name in one.opts], 0.75
    )
    remedy = f"did you mean {meant.split()[0].lstrip('-')}?" if meant else "distrun help all lists them"
    raise UsageError(f"{where}: there is no such option: {remedy}")


def _checked(option: click.Option, value: Any, where: str) -> Any:
    """Return a value as click takes it: a boolean, a text, or for an option that may be repeated, texts."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {json.dumps(value, default=str)} is neither true nor false: give one of them")
        return value
    is_list = option.multiple or "," in (option.metavar or "") or option.metavar == "LIST"
    items = value if is_list and isinstance(value, list) else [value]
    texts = [_text(option, item, where) for item in items]
    if option.multiple:
        return tuple(texts)
    return texts[0] if len(texts) == 1 else ",".join(texts)


def _text(option: click.Option, value: Any, where: str) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    needs_number = isinstance(option.type, _NUMBERS)
    if isinstance(value, bool) and isinstance(option.flag_value, str):  # --auto, --bootstrap
        return option.flag_value if value else None
    if not number and (needs_number or not isinstance(value, str)):
        wanted = "a number" if needs_number else "a text, in quotes"
        raise UsageError(f"{where}: {json.dumps(value, default=str)} is not {wanted}: give one")
    text = str(value)
    name, equals, _ = text.partition("=")
    if option.name == "exports" and equals and _SECRET.search(name):
        raise UsageError(
            f'{where}: {name} looks like a secret, which does not belong into a file: write "{name}" alone, and set it '
            "in the shell"
        )
    try:
        option.type.convert(text, option, None)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message.rstrip('.')}: correct it") from None
    return text
