from container_runtime.image.machine import (
    borrow,
    certificate_bundle,
    parse_pip_settings,
    pip_configuration,
    pip_variables,
    proxy_arguments,
)

CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"


def test_variables_win_over_files_as_in_pip_itself():
    settings = parse_pip_settings(
        ":env:.index-url='https://from.variable/simple'\n"
        "global.index-url='https://from.file/simple'\n"
        "install.timeout='60'\n"
        "global.timeout='5'\n"
    )

    assert settings == {"index-url": "https://from.variable/simple", "timeout": "60"}


def test_settings_of_other_pip_commands_are_left_out():
    assert parse_pip_settings("download.index-url='https://x'\nWARNING: nonsense\n") == {}


def test_values_with_an_equals_sign_and_several_lines_survive():
    settings = parse_pip_settings(r"global.extra-index-url='\nhttps://a/?b=c\nhttps://d'")

    assert pip_configuration(settings, has_bundle=False) == (
        b"[global]\nextra-index-url = https://a/?b=c\n    https://d\n"
    )


def test_paths_of_this_machine_do_not_reach_the_build():
    settings = {"find-links": "/opt/wheels", "cert": "/etc/own.pem", "cache-dir": "/var/cache"}

    configuration = pip_configuration(settings, has_bundle=True)

    assert configuration == b"[global]\ncert = /tmp/machine/ca.pem\n"


def test_variables_alone_do_where_there_is_no_pip():
    assert pip_variables({"PIP_INDEX_URL": "https://x", "PATH": "/bin"}) == {
        "index-url": "https://x"
    }


def test_pips_own_bundle_comes_first_and_then_the_variables(tmp_path):
    own, other = tmp_path / "own.pem", tmp_path / "other.pem"
    own.write_bytes(CERTIFICATE + b"own")
    other.write_bytes(CERTIFICATE + b"other")
    environment = {"REQUESTS_CA_BUNDLE": str(other)}

    assert certificate_bundle(environment, str(own)) == CERTIFICATE + b"own"
    assert certificate_bundle(environment, None) == CERTIFICATE + b"other"


def test_bundle_that_is_missing_or_holds_no_certificate_is_passed_over(tmp_path):
    empty, good = tmp_path / "empty.pem", tmp_path / "good.pem"
    empty.write_bytes(b"")
    good.write_bytes(CERTIFICATE)
    environment = {
        "PIP_CERT": str(tmp_path / "missing.pem"),
        "REQUESTS_CA_BUNDLE": str(empty),
        "SSL_CERT_FILE": str(good),
    }

    assert certificate_bundle(environment, None) == CERTIFICATE


def test_proxies_are_passed_on_in_both_spellings():
    assert proxy_arguments({"HTTPS_PROXY": "http://proxy:1", "no_proxy": ""}) == {
        "https_proxy": "http://proxy:1",
        "HTTPS_PROXY": "http://proxy:1",
    }


async def test_this_machines_settings_make_a_configuration_that_pip_reads(tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(CERTIFICATE)

    machine = await borrow({"PIP_INDEX_URL": "https://i.example/simple", "PIP_CERT": str(bundle)})

    assert b"index-url = https://i.example/simple\n" in machine.files["pip.conf"]
    assert machine.files["ca.pem"] == CERTIFICATE
