"""Owns what a build borrows from this machine: pip settings, certificates, proxy variables.

They reach package indexes during the build and are in no finished image.
"""

import ast
import os
import re
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.setup.processes import run

PIP_TIMEOUT = timedelta(seconds=30)
IN_IMAGE_BUNDLE = "/tmp/machine/ca.pem"
BORROWED_PIP_OPTIONS = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)
BUNDLE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
SETTING = re.compile(r"^(?P<section>[^=]*)\.(?P<option>[^.=]+)=(?P<value>.*)$")
SECTIONS = ("global", "install", ":env:")  # the later wins, as in pip itself


@dataclass(frozen=True)
class Machine:
    """What a build needs to know of this machine."""

    files: Mapping[str, bytes]
    """For the build context's folder `machine`."""
    arguments: Mapping[str, str]
    """Build arguments that the engine knows by itself and keeps out of the history."""


async def borrow(environment: Mapping[str, str] = os.environ) -> Machine:
    """Reads this machine's settings; what it does not have is left out."""
    listed = await run(
        *(sys.executable, "-m", "pip", "config", "list"),
        timeout=PIP_TIMEOUT,
        environment={"PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
    )
    settings = parse_pip_settings(listed.output if listed.code == 0 else "")
    if listed.code != 0:  # no pip beside this interpreter: its variables still count
        settings = pip_variables(environment)
    bundle = certificate_bundle(environment, settings.get("cert"))
    files = {"pip.conf": pip_configuration(settings, has_bundle=bundle is not None)}
    if bundle is not None:
        files["ca.pem"] = bundle
    return Machine(files, proxy_arguments(environment))


def parse_pip_settings(listing: str) -> dict[str, str]:
    """The settings in the output of `pip config list`, whichever section they are in."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        found = SETTING.match(line)
        if found is None or found["section"] not in by_section:
            continue
        try:
            value = ast.literal_eval(found["value"])
        except (ValueError, SyntaxError):
            continue
        by_section[found["section"]][found["option"]] = str(value)
    return {name: value for section in SECTIONS for name, value in by_section[section].items()}


def pip_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that the PIP_* variables make."""
    return {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in environment.items()
        if name.startswith("PIP_")
    }


def pip_configuration(settings: Mapping[str, str], *, has_bundle: bool) -> bytes:
    """A pip.conf with what makes sense inside a container; values may span lines."""
    kept = {name: settings[name] for name in BORROWED_PIP_OPTIONS if settings.get(name, "").strip()}
    if has_bundle:
        kept["cert"] = IN_IMAGE_BUNDLE
    lines = ["[global]", *(f"{name} = " + "\n    ".join(kept[name].split()) for name in kept)]
    return ("\n".join(lines) + "\n").encode()


def certificate_bundle(environment: Mapping[str, str], pip_bundle: str | None) -> bytes | None:
    """The first of pip's own bundle, the usual variables' and the system's that can be read."""
    named = [pip_bundle, *(environment.get(variable) for variable in BUNDLE_VARIABLES)]
    for candidate in [*named, ssl.get_default_verify_paths().cafile, *SYSTEM_BUNDLES]:
        if not candidate:
            continue
        try:
            content = Path(candidate).read_bytes()
        except OSError:
            continue
        if b"-----BEGIN" in content:
            return content
    return None


def proxy_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables in both spellings; engines keep these out of an image's history."""
    found = {}
    for variable in PROXY_VARIABLES:
        value = environment.get(variable) or environment.get(variable.upper())
        if value:
            found[variable] = found[variable.upper()] = value
    return found
