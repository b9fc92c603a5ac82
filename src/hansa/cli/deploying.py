"""The commands of deployments: a site's own process, and a federation on Flower."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.text import printable
from hansa.io.system import require_local_sockets

site_app = typer.Typer(
    help="Take part in a federation as a site, with data that stays here.",
    no_args_is_help=True,
    callback=require_local_sockets,
)
deploy_app = typer.Typer(
    help="Run plans on a federation of sites, by Flower.", no_args_is_help=True, callback=require_local_sockets
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]
Sites = Annotated[
    list[str],
    typer.Option(
        metavar="NAME[=KEY]",
        help="The name of a site, and the public key of its node, a file, where it made its own; once for every site.",
    ),
]
SiteToml = Annotated[Path, typer.Argument(metavar="FILE", help="The site file: site.toml.")]


@site_app.command("serve")
def serve_site(path: SiteToml) -> None:
    """Answer the letters of a server until stopped, and run Flower's node where the file has a [node] table."""
    from hansa.deploy.site import serve

    serve(path, lambda told: print(printable(told), file=sys.stderr, flush=True))


@site_app.command("key")
def tell_key(path: SiteToml) -> None:
    """Tell the lines that all sites need of this one for secure sums; its key is made where there is none yet."""
    from hansa.deploy.identity import own_key
    from hansa.deploy.site import read_site, site_data

    file = read_site(path)
    key = own_key(Path(file.identity))
    for client in site_data(file).clients:
        print(f"{json.dumps(client)} = {json.dumps(key)}")


@deploy_app.command("init")
def init_federation(
    folder: Folder,
    site: Sites,
    host: Annotated[str, typer.Option(help="The server's name or address, as sites reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port that the server listens at.")] = 9092,
) -> None:
    """Write certificates, keys and the app, and tell what each site gets."""
    from hansa.deploy.federation import init

    names, keys = _named(site)
    _tell_sites(init(folder, names, host, port, keys))
    print(f"Next: hansa deploy up {folder}")


@deploy_app.command("add")
def add_sites(folder: Folder, site: Sites) -> None:
    """Add sites to a federation, whose server may run, and tell what each gets."""
    from hansa.deploy.federation import add

    names, keys = _named(site)
    _tell_sites(add(folder, names, keys))


def _named(sites: Sequence[str]) -> tuple[list[str], dict[str, Path]]:
    """Return the names of sites, and the keys that stand beside some."""
    pairs = [(name, key) for name, _, key in (one.partition("=") for one in sites)]
    return [name for name, _ in pairs], {name: Path(key) for name, key in pairs if key}


def _tell_sites(folders: Sequence[Path]) -> None:
    for own in folders:
        adds = "fills in its data" if (own / "node.key").exists() else "adds its node.key, fills in its data"
        print(f"Site '{own.name}': send it the folder {own}; it {adds} and runs: hansa site serve site.toml")


@deploy_app.command("up")
def start_federation(folder: Folder) -> None:
    """Start the server, which goes on in the background."""
    from hansa.deploy.federation import up

    up(folder)
    print(f"The server runs. Next: hansa deploy status {folder}")


@deploy_app.command("run")
def run_on_federation(
    folder: Folder,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or the name of a shipped plan.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: phases.0.rounds=5.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write.  [default: runs/NAME-TIME]")] = None,
) -> None:
    """Run a plan on the sites, whose data stands in for the plan's own; `hansa resume` continues it."""
    from hansa.cli.running import run

    engine = f"engine={{name='flower', carrier={{folder={json.dumps(str(folder.resolve()))}}}}}"
    run(plan, changes=[engine, *(changes or ())], out=out)


@deploy_app.command("status")
def show_federation(folder: Folder) -> None:
    """Show whether the server runs, and who is connected."""
    from hansa.deploy.federation import status

    print(json.dumps(status(folder), indent=1))


@deploy_app.command("doctor")
def examine_site(path: SiteToml) -> None:
    """Tell, at a site, why it cannot take part: version, data, files, address, TLS, clock, authority or key."""
    from hansa.deploy.doctor import examine

    found = list(examine(path))
    for one in found:
        print(printable(f"{'ok ' if one.good else 'BAD'} {one.what}: {one.told}"))
    if not found[-1].good:
        raise SystemExit(2)


@deploy_app.command("down")
def stop_federation(folder: Folder) -> None:
    """Stop the server; runs can be resumed when it is up again."""
    from hansa.deploy.federation import down

    print("The server is stopped." if down(folder) else "The server does not run.")
