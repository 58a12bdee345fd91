"""The commands put together, and what happens when one fails."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from fieldfare import __version__
from fieldfare.cli import filters, follow, index, job, publishing, service, spaces, subscriptions, watch
from fieldfare.cli.demo import demo
from fieldfare.cli.output import EXIT_INTERRUPTED, fail, leave_closed_pipe
from fieldfare.client.errors import FieldfareError


class FieldfareGroup(TyperGroup):
    """Turns what a user can cause into one message and an exit code; only bugs show a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FieldfareError as error:
            fail(str(error))
        except BrokenPipeError:
            leave_closed_pipe()
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    name="fieldfare",
    cls=FieldfareGroup,
    help="Content-based publish/subscribe: every event that matches a filter, and no other.",
    epilog=(
        "Start with `fieldfare serve`, then `fieldfare subscribe --filter 'data.price < 18.5'` "
        "in a second terminal, and `fieldfare publish quotes.jsonl --type quote` in a third."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

app.command("serve")(service.serve)
app.command("publish")(publishing.publish)
app.command("subscribe")(follow.subscribe)
app.add_typer(subscriptions.app, name="subscriptions")
subscriptions.app.command("explain")(index.explain)
app.add_typer(spaces.app, name="spaces")
app.add_typer(filters.app, name="filter")
app.command("match")(job.match)
app.command("top")(watch.top)
app.command("demo")(demo)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"fieldfare {__version__}")
