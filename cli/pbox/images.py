"""`miles pbox image`: the root file systems that sandboxes share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from miles_periodic.cli.pbox.target import DEFAULT_IMAGE_DIR, ImageDir, needing_the_extra

if TYPE_CHECKING:
    from miles_periodic.plugins.pbox.images.store import ImageStore

app = typer.Typer(no_args_is_help=True, help="Make, list and remove images.")


def _store(folder: Path) -> ImageStore:
    with needing_the_extra():
        from miles_periodic.plugins.pbox.images.store import ImageStore
    return ImageStore(folder)


@app.command("build")
def build_command(
    name: str,
    packages: Annotated[list[str] | None, typer.Argument()] = None,
    image_dir: ImageDir = DEFAULT_IMAGE_DIR,
) -> None:
    """Build an image of Debian packages and what they need; python3 and busybox by default."""
    store = _store(image_dir)
    image = store.build(name, packages) if packages else store.build(name)
    typer.echo(f"{name} is {image.digest}: {len(image.made_of)} packages in {image.root}")


@app.command("pull")
def pull_command(name: str, source: str, image_dir: ImageDir = DEFAULT_IMAGE_DIR) -> None:
    """Take an OCI image as skopeo names it, such as docker://python:3.12, by skopeo and umoci."""
    image = _store(image_dir).pull(name, source)
    typer.echo(f"{name} is {image.digest}: {image.root}")


@app.command("add")
def add_command(name: str, folder: Path, image_dir: ImageDir = DEFAULT_IMAGE_DIR) -> None:
    """Use a folder with a root file system as an image, where it lies."""
    image = _store(image_dir).add_folder(name, folder)
    typer.echo(f"{name} is {image.digest}: {image.root}")


@app.command("ls")
def ls_command(image_dir: ImageDir = DEFAULT_IMAGE_DIR) -> None:
    """List the images of this node."""
    table = Table("names", "digest", "made of", "python")
    for image in _store(image_dir).all():
        made_of = image.made_of[0] if len(image.made_of) == 1 else f"{len(image.made_of)} packages"
        table.add_row(", ".join(image.names), image.digest, made_of, image.python)
    Console().print(table)


@app.command("rm")
def rm_command(name: str, image_dir: ImageDir = DEFAULT_IMAGE_DIR) -> None:
    """Take a name away from its image."""
    _store(image_dir).remove(name)


@app.command("prune")
def prune_command(image_dir: ImageDir = DEFAULT_IMAGE_DIR) -> None:
    """Remove every image that has no name; stop the agents that use it first."""
    for image in _store(image_dir).prune():
        typer.echo(f"removed {image.digest}")
