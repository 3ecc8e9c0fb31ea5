"""The options of ``streamlease space create`` that give a space epochs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streamlease.protocol.epochs.order import checked_dimensions
from streamlease.protocol.quantities import parse_duration

Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="D",
        help="Messages are of epochs: integers (1), or tuples of so many. Cannot be changed later.",
    ),
]
EpochsTimeout = Annotated[
    str | None,
    typer.Option(
        "--epochs-timeout",
        metavar="AGE",
        help="An epoch publisher that is silent for so long is lost. Default 30s.",
    ),
]
EpochsOnLoss = Annotated[
    str | None,
    typer.Option(
        "--epochs-on-loss",
        metavar="abort|wait",
        help="What a lost publisher had sent in epochs that it had not given up: dropped, which is the "
        "default, or kept until it comes back or an operator decides.",
    ),
]


def epoch_options(dimensions: int | None, timeout: str | None, on_loss: str | None) -> dict[str, Any]:
    """What was given, as ``create_space`` takes it.

    Raises:
        InvalidOption: the time is no duration, or there are no dimensions.
    """
    if dimensions is not None:
        checked_dimensions(dimensions)
    silence = None if timeout is None else parse_duration("--epochs-timeout", timeout) / 1000
    return {"epochs": dimensions or 0, "epochs_timeout": silence, "epochs_on_loss": on_loss}
