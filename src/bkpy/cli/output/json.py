"""Where commands print JSON: the option that asks for it, one document, or one object a line."""

from __future__ import annotations

import json

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def print_json(value: object) -> None:
    """One JSON document on standard output, for people and programs."""
    click.echo(json.dumps(value, indent=2))


def print_json_line(value: object) -> None:
    """One JSON document in a line of its own, for programs that read line by line."""
    click.echo(json.dumps(value))
