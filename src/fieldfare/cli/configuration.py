"""Settings of ``fieldfare serve`` in a file, ``fieldfare.toml``: read, checked, and shown.

A setting's name in the file is its environment variable's, in lower case and without ``FIELDFARE_``. Values
of the file become environment variables that are not set yet. So an option takes precedence over the
environment, and the environment over the file, in every process of the service.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fieldfare.cli.app import load_command
from fieldfare.cli.output import EXIT_USAGE, fail, report_warning
from fieldfare.runtimes.process.log_lines import FORMAT_VARIABLE

PREFIX = "FIELDFARE_"
CONFIG_VARIABLE = "FIELDFARE_CONFIG"
DEFAULT_CONFIG = Path("fieldfare.toml")
"""The configuration file that is read if none is named; it may be missing."""

Origin = Literal["default", "file", "environment"]

app = typer.Typer(help="Settings of the service: show them with their origins, or check a file.")


class ConfigurationError(ValueError):
    """A configuration file cannot be used; the message has one line for each mistake."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one file: `values` by variable, as text."""

    path: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Set the variables that the environment does not have."""
        for variable, value in self.values.items():
            environment.setdefault(variable, value)


class Known:
    """All settings: the gateway's, and the options of ``serve`` that have a variable."""

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The gateway's settings by name."""
        fields: Mapping[str, Any] = _gateway_settings().GatewaySettings.model_fields
        return fields

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The options of ``serve`` by name; each one's variable is ``FIELDFARE_<NAME>``."""
        params = load_command("serve").params
        named = {_name_of(param.envvar): param for param in params if param.envvar}
        return {name: param for name, param in named.items() if param.envvar != CONFIG_VARIABLE}

    @cached_property
    def names(self) -> list[str]:
        """All names, the gateway's first."""
        return [*self.fields, *(name for name in self.options if name not in self.fields)]

    def mistakes(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return what is wrong with each value that is not valid."""
        return self._wrong_options(values) | self._wrong_settings(values)

    def _wrong_options(self, values: Mapping[str, Any]) -> dict[str, str]:
        wrong = {}
        for name, param in self.options.items():
            if name not in values or name in self.fields:
                continue
            value = values[name]
            if isinstance(value, list) != param.multiple:
                wrong[name] = "it must be a list of strings" if param.multiple else "it must not be a list"
                continue
            try:
                param.process_value(None, value if param.multiple else _as_variable(value, " "))
            except Exception as error:
                wrong[name] = getattr(error, "message", str(error)).removeprefix("Value error, ")
        return wrong

    def _wrong_settings(self, values: Mapping[str, Any]) -> dict[str, str]:
        given = {
            name: value if isinstance(value, list) else _as_variable(value, ",")
            for name, value in values.items()
            if name in self.fields
        }
        settings = _gateway_settings()
        try:
            settings.GatewaySettings.model_validate(given)
        except settings.ValidationError as error:
            # Rules between settings have no place; they are checked once all settings are known. The errors
            # also name variables of the environment, which the model reads by itself.
            wrong = {str(each["loc"][0]): each for each in error.errors() if each["loc"]}
            return {name: settings.message_of(each) for name, each in wrong.items() if name in given}
        return {}


def read_configuration(path: Path) -> Configuration:
    """Read and check a file.

    Raises
    ------
    ConfigurationError
        The file is not TOML, or has names or values that are not valid: all of them are listed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not TOML, or a number of 5,000 digits.
        not_text = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else None
        reason = getattr(error, "strerror", None) or not_text or error
        raise ConfigurationError(f"{path}: {reason}") from None
    known = Known()
    wrong = {name: _unknown(name, known.names) for name in values if name not in known.names}
    wrong |= {
        name: "the value must be a string, a number, true or false, or a list of strings"
        for name, value in values.items()
        if name not in wrong and not _is_plain(value)
    }
    wrong |= {
        name: "the value must not contain the character NUL"
        for name, value in values.items()
        if name not in wrong and "\0" in _as_variable(value, " ")
    }
    valid = {name: value for name, value in values.items() if name not in wrong}
    wrong |= {
        name: f"{_toml(values[name])} is not valid: {reason}"
        for name, reason in known.mistakes(valid).items()
    }
    if wrong:
        lines = [(_line_of(name, text), f"{name}: {reason}") for name, reason in wrong.items()]
        raise ConfigurationError("\n".join(f"{path}:{line}: {said}" for line, said in sorted(lines)))
    multiple = {name for name, param in known.options.items() if param.multiple}
    return Configuration(
        path,
        {
            PREFIX + name.upper(): _as_variable(value, " " if name in multiple else ",")
            for name, value in valid.items()
        },
    )


def configuration_path(named: Path | None) -> Path | None:
    """Return the file that is named, or ``fieldfare.toml`` in the current directory if there is one."""
    return named or (DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None)


def load_configuration(named: Path | None) -> Configuration:
    """Read the file that is named, or the default one if it exists; exit with an error if it is not valid."""
    path = configuration_path(named)
    try:
        return Configuration() if path is None else read_configuration(path)
    except ConfigurationError as error:
        fail(str(error))


def warn_of_unknown_variables() -> None:
    """Print a warning for each environment variable that looks like a setting but is none."""
    others = os.environ.keys() - _gateway_settings().SETTING_VARIABLES - {FORMAT_VARIABLE}
    if not any(name.startswith(PREFIX) for name in others):
        return
    from fieldfare.cli.variables import known_variables  # loads all commands
    from fieldfare.gateway.setting_values import unknown_settings

    for unknown in unknown_settings(others, known_variables()):
        report_warning(unknown)


def _gateway_settings() -> Any:
    """Import the gateway's settings late: they need the server's packages."""
    return import_module("fieldfare.gateway.settings")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, str | int | float)


def _as_variable(value: Any, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower()


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(_name_of(name.upper()), known, n=1)
    return f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"


def _line_of(name: str, text: str) -> int:
    """Return the number of the line that sets a name; 1 if it is not found."""
    pattern = re.compile(rf"\s*[\[\"']*{re.escape(name)}\b")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


ShownFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help="The TOML file. Default: fieldfare.toml in the current directory, if it exists.",
    ),
]


ShownArgument = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="The TOML file, as with --config.", show_default=False)
]


@app.command()
def show(
    file: ShownArgument = None,
    config: ShownFile = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Add where each value comes from: default, file or environment.")
    ] = False,
) -> None:
    """Print the settings that ``serve`` would use here, as a TOML file.

    Example:
    ```
    fieldfare config show --origin
    ```
    """
    found = load_configuration(_named(file, config))
    warn_of_unknown_variables()
    known = Known()
    for name, reason in known.mistakes(_values_of(os.environ, known)).items():
        report_warning(f"{PREFIX}{name.upper()}={os.environ[PREFIX + name.upper()]} is not valid: {reason}")
    for name in known.names:
        value, source = effective(name, known, found, os.environ)
        line = f"{name} = {value}" if value is not None else f"# {name} is not set"
        typer.echo(f"{line}  # {source}" if origin and value is not None else line)


@app.command()
def check(file: ShownArgument = None, config: ShownFile = None) -> None:
    """Check a file; print every mistake with its line, and exit with 1 if there are any.

    Example:
    ```
    fieldfare config check fieldfare.toml
    ```
    """
    found = load_configuration(_named(file, config))
    if found.path is None:
        fail(f"there is no {DEFAULT_CONFIG} in this directory; name a file: fieldfare config check FILE")
    warn_of_unknown_variables()
    found.apply(os.environ)
    settings = _gateway_settings()
    try:
        settings.GatewaySettings()
    except settings.ValidationError as error:
        # A rule between settings, which have several lines; or variables, as the file's values are valid.
        is_rule = not any(each["loc"] for each in error.errors())
        fail((f"{found.path}: " if is_rule else "") + settings.wrong_setting(error))
    count = len(found.values)
    typer.echo(f"{found.path}: {count} {'setting' if count == 1 else 'settings'}, all valid")


def _values_of(environment: Mapping[str, str], known: Known) -> dict[str, str | list[str]]:
    """Return the settings that variables set, as a file would have them."""
    texts = {name: environment.get(PREFIX + name.upper()) for name in known.names}
    multiple = {name for name, param in known.options.items() if param.multiple}
    return {
        name: text.split() if name in multiple else text for name, text in texts.items() if text is not None
    }


def _named(file: Path | None, config: Path | None) -> Path | None:
    """Return the file that is named, as an argument or with ``--config``."""
    is_option = config is not None and str(config) != os.environ.get(CONFIG_VARIABLE)
    if file is not None and is_option:
        fail("name the file once: FILE or --config FILE", EXIT_USAGE)
    return file or config


def effective(
    name: str, known: Known, file: Configuration, environment: Mapping[str, str]
) -> tuple[str | None, Origin]:
    """Return a setting's value as TOML, None if it has none, and its origin."""
    variable = PREFIX + name.upper()
    text = environment.get(variable)
    source: Origin = "file" if text is None else "environment"
    if text is None:
        text = file.values.get(variable)
    option = known.options.get(name)
    if text is None:
        field = known.fields.get(name)
        default = field.default if field is not None else known.options[name].default
        return _toml(default), "default"
    return _toml(text.split() if option is not None and option.multiple else text), source


def _toml(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return f"[{', '.join(str(_toml(each)) for each in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = str(value)
    if re.fullmatch(r"-?\d+(\.\d+)?|true|false", text):
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char
