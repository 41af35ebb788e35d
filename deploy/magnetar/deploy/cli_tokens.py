"""`magnetar admin tokens`: makes and inspects keys and tokens on this machine; contacts no
server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from magnetar.deploy.errors import SettingsError

tokens = typer.Typer(no_args_is_help=True, help="Create keys and tokens; validate and show tokens.")

SecretKeyOption = Annotated[
    str,
    typer.Option(
        "--secret-key",
        "-sk",
        metavar="KEY",
        help="Secret key: file:///path or data:;base64,….",
    ),
]
TokenArgument = Annotated[
    str,
    typer.Argument(
        help="The token. --stdin and --token-file keep it out of the process list.",
        show_default=False,
    ),
]
StdinOption = Annotated[bool, typer.Option("--stdin", "-i", help="Read the token from stdin.")]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", "-f", help="Read the token from a file.")
]


@tokens.command("create-secret-key")
def create_secret_key(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; it must not exist. Default: stdout."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--signature-algorithm", "-a", help="HS256, HS384 or HS512.")
    ] = "HS256",
    as_base64: Annotated[
        bool, typer.Option("--base64", "-b", help="Print base64, for data:;base64,… settings.")
    ] = False,
) -> None:
    """Create a secret key, which signs and validates tokens."""
    from magnetar.deploy import token_tools

    key = token_tools.new_secret_key(algorithm, as_base64=as_base64)
    if output is not None:
        token_tools.write_secret(output, key)
    elif as_base64:
        sys.stdout.write(key.decode() + "\n")
    else:
        sys.stdout.buffer.write(key)


@tokens.command("create-key-pair")
def create_key_pair(
    private_key: Annotated[
        Path, typer.Option("--output-private-key", help="File to write; it must not exist.")
    ],
    public_key: Annotated[
        Path, typer.Option("--output-public-key", help="File to write; it must not exist.")
    ],
    algorithm: Annotated[
        str,
        typer.Option("--signature-algorithm", "-a", help="RS256 to RS512, or ES256 to ES512."),
    ] = "RS256",
) -> None:
    """Create a key pair. The private key signs tokens; brokers need only the public key."""
    from magnetar.deploy import token_tools

    private, public = token_tools.new_key_pair(algorithm)
    token_tools.write_secret(private_key, private)
    public_key.write_bytes(public)


@tokens.command()
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="Role of the token's holder.")],
    secret_key: SecretKeyOption = "",
    private_key: Annotated[
        str,
        typer.Option(
            "--private-key",
            "-pk",
            metavar="KEY",
            help="Key of a key pair: file:///path or data:;base64,….",
        ),
    ] = "",
    expiry: Annotated[
        str,
        typer.Option(
            "--expiry-time",
            "-e",
            metavar="TIME",
            help="Lifetime, as 90s, 10m, 8h, 30d, 1y; default: no expiry.",
        ),
    ] = "",
    algorithm: Annotated[
        str,
        typer.Option(
            "--signature-algorithm",
            "-a",
            help="Default: HS256, or the algorithm of the private key.",
        ),
    ] = "",
    audience: Annotated[str, typer.Option("--audience", help="Audience of the token.")] = "",
) -> None:
    """Create a token."""
    from magnetar.deploy import token_tools

    sys.stdout.write(
        token_tools.new_token(
            subject,
            secret_key=secret_key,
            private_key=private_key,
            expiry=expiry,
            algorithm=algorithm,
            audience=audience,
        )
        + "\n"
    )


@tokens.command()
def validate(
    token: TokenArgument = "",
    stdin: StdinOption = False,
    token_file: TokenFileOption = None,
    secret_key: SecretKeyOption = "",
    public_key: Annotated[
        str,
        typer.Option(
            "--public-key",
            "-pk",
            metavar="KEY",
            help="Key of a key pair: file:///path or data:;base64,….",
        ),
    ] = "",
) -> None:
    """Validate a token as brokers do: print its role, or the error (status 2)."""
    from magnetar.deploy import token_tools

    found = _token(token, stdin=stdin, file=token_file)
    role = token_tools.validate(found, secret_key=secret_key, public_key=public_key)
    sys.stdout.write(f"{role}\n")


@tokens.command()
def show(
    token: TokenArgument = "",
    stdin: StdinOption = False,
    token_file: TokenFileOption = None,
) -> None:
    """Print the header and the claims of a token without validating it."""
    from magnetar.deploy import token_tools

    for part in token_tools.parts_of(_token(token, stdin=stdin, file=token_file)):
        sys.stdout.write(f"{part}\n")


def _token(token: str, *, stdin: bool, file: Path | None) -> str:
    if bool(token) + stdin + (file is not None) != 1:
        raise SettingsError("give one token: as an argument, by --stdin or by --token-file")
    if stdin:
        token = sys.stdin.read()
    if file is not None:
        try:
            token = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read {file}: {error}") from error
    return token.strip()
