"""The command ``streamlease``.

Exit 0: done; 1: failed; 2: the command or one of its values is not acceptable; 130: Ctrl-C; 141: who
read what it prints went away. An error is one line on standard error, ``error: what, which value, what to
do``; with ``--json`` there is also a document ``{"error": {"type", "message"}}`` on standard output, so that
a program always has one to read.

Everything slow is imported by the command that needs it: ``streamlease --help`` loads no client.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from typing import Annotated, Any

import typer

from streamlease.admin import serving, status_view, top, web
from streamlease.admin.archives import archive_cli
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.doctor import doctor
from streamlease.admin.epochs import epochs_cli
from streamlease.admin.gateway import bridge_cli, gateway_cli
from streamlease.admin.groups import group_cli
from streamlease.admin.messages import catalog_view, collection_view, consume, importing, publish
from streamlease.admin.output import OutputLost, document, let_go, note, prepare_output
from streamlease.admin.queries import executor_cli, query_cli, submit_cli
from streamlease.admin.queries.secrets_aside import start_without_secrets
from streamlease.admin.redis import redis_cli
from streamlease.admin.spaces import space_cli
from streamlease.protocol.errors import InvalidInput, StreamleaseError

FAILED, USAGE, BROKEN_PIPE = 1, 2, 141

app = typer.Typer(
    name="streamlease",
    help="Durable, ordered, elastic consumer groups for Spark and Python, on Redis.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(redis_cli.app, name="redis")
app.add_typer(space_cli.app, name="space")
app.add_typer(group_cli.app, name="group")
app.add_typer(epochs_cli.app, name="epochs")
app.add_typer(archive_cli.app, name="archive")
app.command("serve")(serving.serve)
app.add_typer(bridge_cli.app, name="bridge")
app.add_typer(importing.app, name="import")
app.command("publish")(publish.publish)
app.command("consume")(consume.consume)
app.command("collection")(collection_view.collection)
app.command("catalog")(catalog_view.catalog)
app.command("status")(status_view.status)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("ui")(web.ui)
app.command("gateway")(gateway_cli.gateway)
app.command("executor")(executor_cli.executor)
app.command("submit")(submit_cli.submit)
app.add_typer(query_cli.app, name="query")


@app.command()
def demo(redis: RedisUrl = None, as_json: AsJson = False) -> int:
    """Run the main job end to end, on a temporary Redis unless one is given."""
    from streamlease.admin.demo.stage import run

    return int(run(redis, as_json))


def _print_version(wanted: bool) -> None:
    if wanted:
        from streamlease import __version__

        typer.echo(f"streamlease {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    context: typer.Context,
    redis: RedisUrl = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable, ordered, elastic consumer groups for Spark and Python, on Redis."""
    if redis is None:
        return
    if context.invoked_subcommand == "redis":
        raise InvalidInput(
            "--redis names a Redis that runs already, and 'streamlease redis' is about the embedded one: "
            "leave --redis out"
        )
    context.default_map = _with_default(context.command, "redis", redis)


def _with_default(command: Any, parameter: str, value: str) -> dict[str, Any]:
    """`value` as the default of that parameter for every command below `command` that has it."""
    below: dict[str, Any] = {}
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            below[name] = _with_default(one, parameter, value)
        elif any(each.name == parameter for each in one.params):
            below[name] = {parameter: value}
    return below


def main() -> None:
    """The entry point."""
    # A view of 10,000 streams makes objects by the hundred thousand, which all stay to the end.
    gc.set_threshold(100_000)
    prepare_output()
    _hide_secrets()
    start_without_secrets(sys.argv[1:])
    sys.exit(run(sys.argv[1:]))


def _hide_secrets() -> None:
    """All users of a machine see the words of a process: a URL with a password goes into its environment."""
    words, url = without_secret(sys.argv[1:])
    if url is not None:
        python = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
        os.execve(sys.executable, [*python, *words], {**os.environ, "STREAMLEASE_REDIS_URL": url})


def without_secret(words: list[str]) -> tuple[list[str], str | None]:
    """`words` without ``--redis URL``, and the URL that holds, if that has something to hide. Pure."""
    from streamlease.streams.redis.url_parts import masked

    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    url: str | None = None
    left = iter(words[:end])
    for word in left:
        name, equals, value = word.partition("=")
        if name != "--redis":
            kept.append(word)
        elif (given := value if equals else next(left, None)) is None:
            return words, None  # the command says what is missing
        else:
            url = given
    if url is None or not url or masked(url) == url:
        return words, None
    return [*kept, *words[end:]], url


@functools.cache
def tree() -> Any:
    """All commands as they are parsed. Who runs several in one process makes this once: it takes 40 ms."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """One call of the command; its exit code."""
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in words
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        result: Any = tree()(arguments, standalone_mode=False, prog_name="streamlease")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except OutputLost as lost:
        return _without_output(lost)
    except StreamleaseError as error:
        return _failed(error, str(error), as_json, USAGE if isinstance(error, InvalidInput) else FAILED)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is None:  # no file of the user's: a defect
            raise
        text = f"cannot use the file {error.filename}: {error.strerror}: choose another, or mend its rights"
        return _failed(error, text, as_json, FAILED)
    except typer.Abort:
        note("error: nothing was done: the question was not answered with yes")
        return FAILED
    except Exception as error:
        return _usage(error, arguments, as_json)


def _without_output(lost: OutputLost) -> int:
    """Exit code of a command whose standard output could not be written."""
    let_go()
    if lost.by_reader:  # it has enough of it
        return BROKEN_PIPE
    note(
        f"error: standard output cannot be written: {lost}: send it elsewhere, or make room for it; "
        "what the command was to do may be done"
    )
    return FAILED


def _usage(error: Exception, arguments: list[str], as_json: bool) -> int:
    """Exit code of an error in the use of the command; anything else is a defect and goes on."""
    if not hasattr(error, "format_message"):
        raise error
    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        note(message)
        return USAGE
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _called(arguments)
    return _failed(error, f"{message.rstrip('.')}{_value(error)}: see '{path} --help'", as_json, USAGE)


def _called(arguments: list[str]) -> str:
    """The command that these words call, for errors that do not say in which command they are."""
    node, path = tree(), ["streamlease"]
    for word in arguments:
        below = getattr(node, "commands", {}).get(word)
        if below is not None:
            node, path = below, [*path, word]
    return " ".join(path)


def _value(error: Exception) -> str:
    """The value that a type did not accept, which the message of Typer leaves out."""
    cause = error.__cause__ or error.__context__
    problems = getattr(cause, "errors", None)
    if not callable(problems) or not problems():
        return ""
    value = ascii(problems()[0]["input"])[:80]
    return "" if value in str(error) else f", not {value}"


def _failed(error: Exception, message: str, as_json: bool, code: int) -> int:
    text = " ".join(message.split())
    if as_json:
        from streamlease.admin.answers import Error

        try:
            document(Error.of(error, text))
        except OutputLost:
            let_go()  # the line below says what there is to say
    note(f"error: {text}")
    return code
