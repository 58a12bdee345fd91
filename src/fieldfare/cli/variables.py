"""Every environment variable that the package reads, from the options and settings that name them."""

from __future__ import annotations

from typing import Any

import typer

from fieldfare.cli.app import app, load_command
from fieldfare.cli.execute import ATTEMPT_VARIABLE, POSITION_VARIABLE
from fieldfare.client.credentials import KEY_FILE_VARIABLE, KEY_VARIABLE, PASSPHRASE_VARIABLE
from fieldfare.gateway.settings import SETTING_VARIABLES
from fieldfare.runtimes.process.logs import LOG_VARIABLE
from fieldfare.runtimes.process.parents import DAEMON_VARIABLE, PARENT_VARIABLE
from fieldfare.runtimes.process.reexec import CHECK_VARIABLE, INHERITED_VARIABLE
from fieldfare.runtimes.process.successors import TURN_VARIABLE

_OWN = {ATTEMPT_VARIABLE, POSITION_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE, PASSPHRASE_VARIABLE}
_INHERITED = {
    *(LOG_VARIABLE, PARENT_VARIABLE, DAEMON_VARIABLE),
    *(INHERITED_VARIABLE, CHECK_VARIABLE, TURN_VARIABLE),
}
_COMMANDS = ("serve", "publish")


def known_variables() -> frozenset[str]:
    """The variables of the service, the command line, the client and the processes that they start."""
    commands: list[Any] = [typer.main.get_command(app), *map(load_command, _COMMANDS)]
    options = {param.envvar for command in commands for param in command.params if param.envvar}
    return SETTING_VARIABLES | _OWN | _INHERITED | options
