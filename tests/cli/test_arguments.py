from __future__ import annotations

import pytest

from swaplane.cli_arguments import DEFAULT_LISTEN, FlagNotAvailableError, listen_address, normalised, who_can_reach


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("-config x", "--config x"),
        ("-config=x", "--config=x"),
        ("--config x", "--config x"),
        ("-listen :8080 -config a=b", "--listen :8080 --config a=b"),
        ("-version", "--version"),
        ("-help", "--help"),
        ("-h", "-h"),
        ("-unknown", "-unknown"),
        ("-", "-"),
    ],
)
def test_serve_takes_flags_with_one_dash(given: str, read: str) -> None:
    assert normalised(["serve", *given.split()]) == ["serve", *read.split()]


def test_other_commands_are_left_alone() -> None:
    assert normalised(["check", "-config", "x"]) == ["check", "-config", "x"]
    assert normalised([]) == []


@pytest.mark.parametrize("flag", ["-config-dir", "--config-dir=x", "-tls-cert-file", "-tls-key-file", "--watch-config"])
def test_flags_that_are_not_there_yet_are_refused(flag: str) -> None:
    with pytest.raises(FlagNotAvailableError, match=r"^-(config-dir|tls-.*|watch-config) is not available yet: .+\.$"):
        normalised(["serve", flag])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:1", ("localhost", 1)),
        (":8080", ("0.0.0.0", 8080)),
        ("8000", ("127.0.0.1", 8000)),
        ("0", ("127.0.0.1", 0)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::]:65535", ("::", 65535)),
    ],
)
def test_listen_addresses(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":", "localhost", "localhost:", "h:65536", "h:-1", "h:٣", "h:000080", "::1", "::1:8000", "[x]:1", "[::1]"],
)
def test_other_listen_addresses_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        listen_address(text)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("listen", ["8000", "127.1.2.3:1", "[::1]:8080", "localhost:8080"])
def test_an_address_of_this_machine_needs_no_note(listen: str, keyed: bool) -> None:
    assert who_can_reach(listen, listen_address(listen)[0], keyed=keyed) == ""


@pytest.mark.parametrize("listen", [":8080", "0.0.0.0:8080", "[::]:8080", "192.168.1.5:80", "gpu-box:80"])
def test_any_other_address_is_warned_of_unless_there_are_keys(listen: str) -> None:
    host, _ = listen_address(listen)
    note = who_can_reach(listen, host, keyed=False)
    assert f"Everybody who can reach {listen} may" in note
    assert "`swaplane key new` makes one" in note
    assert who_can_reach(listen, host, keyed=True) == ""


@pytest.mark.parametrize("keyed", [False, True])
def test_the_default_says_how_it_differs_from_llama_swaps(keyed: bool) -> None:
    assert "this machine only" in who_can_reach(DEFAULT_LISTEN, "127.0.0.1", keyed=keyed)
