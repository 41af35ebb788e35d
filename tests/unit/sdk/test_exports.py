"""What `magnetar.sdk` exports: its names are loaded only when they are first used."""

import subprocess
import sys

import pytest

import magnetar.sdk


@pytest.mark.parametrize("name", magnetar.sdk.__all__)
def test_each_name_that_the_package_exports_is_found(name: str) -> None:
    assert getattr(magnetar.sdk, name).__name__ == name


def test_a_program_that_imports_all_names_gets_them() -> None:
    program = "from magnetar.sdk import *; print(ConsumerInterceptor, ProducerInterceptor)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
