"""`magnetar admin tokens`: keys and tokens, made and looked at on this machine alone."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from magnetar.deploy.errors import SettingsError

tokens = typer.Typer(no_args_is_help=True, help="Make keys and tokens, and look at tokens.")

SecretKeyOption = Annotated[
    str, typer.Option("--secret-key", "-sk", metavar="KEY", help="file:///path or data:;base64,….")
]
TokenArgument = Annotated[
    str, typer.Argument(help="The token; better by --stdin or --token-file.", show_default=False)
]
StdinOption = Annotated[bool, typer.Option("--stdin", "-i", help="Read the token from stdin.")]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", "-f", help="Read the token from a file.")
]


@tokens.command("create-secret-key")
def create_secret_key(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to make; default: stdout.")
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--signature-algorithm", "-a", help="HS256, HS384 or HS512.")
    ] = "HS256",
    as_base64: Annotated[
        bool, typer.Option("--base64", "-b", help="As base64, for data:;base64,… settings.")
    ] = False,
) -> None:
    """Make a secret key, by which tokens are signed and checked."""
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
    private_key: Annotated[Path, typer.Option("--output-private-key", help="File to make.")],
    public_key: Annotated[Path, typer.Option("--output-public-key", help="File to make.")],
    algorithm: Annotated[
        str,
        typer.Option("--signature-algorithm", "-a", help="RS256 to RS512, or ES256 to ES512."),
    ] = "RS256",
) -> None:
    """Make a pair of keys: the private one signs tokens, brokers need the public one only."""
    from magnetar.deploy import token_tools

    private, public = token_tools.new_key_pair(algorithm)
    token_tools.write_secret(private_key, private)
    public_key.write_bytes(public)


@tokens.command()
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role that it stands for.")],
    secret_key: SecretKeyOption = "",
    private_key: Annotated[
        str, typer.Option("--private-key", "-pk", metavar="KEY", help="Of a key pair.")
    ] = "",
    expiry: Annotated[
        str,
        typer.Option(
            "--expiry-time", "-e", metavar="TIME", help="As 90s, 10m, 8h, 30d, 1y; default: never."
        ),
    ] = "",
    algorithm: Annotated[
        str,
        typer.Option(
            "--signature-algorithm", "-a", help="Default: HS256, or what fits the private key."
        ),
    ] = "",
    audience: Annotated[str, typer.Option("--audience", help="Whom it is for.")] = "",
) -> None:
    """Make a token."""
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
        str, typer.Option("--public-key", "-pk", metavar="KEY", help="Of a key pair.")
    ] = "",
) -> None:
    """Check a token as brokers do; prints its role, or says what is wrong (status 2)."""
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
    """Print the header and the claims of a token, unchecked."""
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
