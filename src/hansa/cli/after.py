"""The commands of a finished run: predict with its models, save one, add a client, forget one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.options import ModelOf, TrustOwnCode
from hansa.errors import HansaError


def predict(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file that `hansa save` wrote.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Samples: .npz, .npy, .safetensors, a table, images.")],
    client: ModelOf = None,
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as a CSV table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
    trust: TrustOwnCode = False,
) -> None:
    """Predict with the model that a client deploys after a run, or with the global one."""
    from hansa.cli.predicting import show_predictions

    show_predictions(path, client, file, out, as_json, trust)


def save(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: NAME.safetensors.")],
    client: ModelOf = None,
    trust: TrustOwnCode = False,
) -> None:
    """Save a model as one file that predicts where neither the run nor its data are."""
    from hansa.cli.predicting import save_model

    save_model(path, client, out, trust)


def adapt_newcomer(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[Path, typer.Option(help="The new client's samples, with labels, in a file as `predict` reads it.")],
    client: Annotated[str, typer.Option(help="The name of the client that joins.")],
    rounds: Annotated[
        int, typer.Option(help="Local rounds in every phase in which clients learn parts of their own.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="The file to write.  [default: CLIENT.safetensors]")] = None,
    trust: TrustOwnCode = False,
) -> None:
    """Learn the own part of a client that was not in the run, with local work only, and save its model."""
    from hansa.cli.predicting import adapt_model
    from hansa.io.names import bad_name

    if out is None and (why := bad_name(client)):
        raise HansaError(f"A client's name begins that of its file, and {why}, or give a file with --out.")
    adapt_model(path, data, client, rounds, out or Path(f"{client}.safetensors"), trust)


def forget(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[str, typer.Option(help="The client that leaves.")],
    upload: Annotated[Path | None, typer.Option(help="What the client sends again, where nothing was kept.")] = None,
    trust: TrustOwnCode = False,
) -> None:
    """Take a client out of a closed-form classifier, with no training and no contact with the others.

    The record says whether that is exact, and what the client still touches.
    """
    from hansa.deploy.forget import forget as forget_client

    record = forget_client(path, client, upload, trust=trust)
    print(json.dumps(record, indent=1))
    learnt = [f"{one['where']} ({one['what']})" for one in record["remains"] if one["learnt"]]
    exact = f"Exact: nothing that the model depends on remains of '{client}'."
    print(f"Not exact, because this remains: {'; '.join(learnt)}." if learnt else exact, file=sys.stderr)
    if record["not_evaluated"]:
        print(record["not_evaluated"], file=sys.stderr)


def recreate(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    client: Annotated[str, typer.Option(help="The client.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    trust: TrustOwnCode = False,
) -> None:
    """Compute what a client sent in a run's last phase from its data again, to be forgotten by it."""
    from hansa.deploy.forget import recreate_upload

    print(f"Wrote {recreate_upload(path, client, out, trust=trust)}")
