"""Where commands print JSON: the option that asks for it, one document, or one object a line."""

from __future__ import annotations

import json

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def print_json(value: object) -> None:
    """One JSON document on standard output, for people and programs."""
    click.echo(json.dumps(value, indent=2))


class JsonList:
    """A JSON array that is printed element by element, as `print_json` prints it as a whole."""

    def __init__(self) -> None:
        self._begun = False

    def add(self, value: object) -> None:
        """Print one element."""
        text = json.dumps(value, indent=2).replace("\n", "\n  ")
        click.echo(f"{',' if self._begun else '['}\n  {text}", nl=False)
        self._begun = True

    def end(self) -> None:
        """Print the end."""
        click.echo("\n]" if self._begun else "[]")


def print_json_line(value: object) -> None:
    """One JSON document in a line of its own, for programs that read line by line."""
    click.echo(json.dumps(value))
