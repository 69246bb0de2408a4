from __future__ import annotations

import pytest

from swaplane.config.settings import JobsSettings
from tests.config.reading import problems, settings

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"


def test_without_the_key_everything_is_as_by_default() -> None:
    assert settings("").jobs == settings("jobs:").jobs == settings("jobs: {}").jobs == JobsSettings()


def test_every_value_arrives() -> None:
    text = """
macros: {folder: /var/lib}
jobs:
  path: ${folder}/swaplane
  keep: 3600
  interrupted: report
  replay: 0
  webhook:
    hosts: [Hooks.Example.org, "127.0.0.1:9000", "[::1]:80", my_host]
    secret: "${env.SECRET}"
"""
    assert settings(text, {"SECRET": SECRET}).jobs == JobsSettings(
        path="/var/lib/swaplane",
        keep_s=3600,
        interrupted="report",
        replay_s=0,
        webhook_hosts=("hooks.example.org", "127.0.0.1:9000", "[::1]:80", "my_host"),
        webhook_secret=b"012345678901234567890123",
    )


def test_the_secret_is_not_shown() -> None:
    jobs = settings(f"jobs: {{webhook: {{secret: {SECRET}}}}}").jobs
    assert "0123" not in repr(jobs)
    assert SECRET[6:] not in repr(jobs)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("kep: 5", "1:8: jobs.kep: unknown key `kep` (did you mean `keep`?)"),
        ("keep: 0", "1:14: jobs.keep: must be greater than 0, not 0"),
        ("keep: 1d", '1:14: jobs.keep: must be a number, not the text "1d"'),
        ("replay: -1", "1:16: jobs.replay: must be at least 0, not -1"),
        (
            "interrupted: rerunn",
            '1:21: jobs.interrupted: must be `rerun` or `report`, not the text "rerunn" (did you mean `rerun`?)',
        ),
        (
            "path: state",
            '1:14: jobs.path: must be the full path of a folder, such as /var/lib/swaplane, not "state"',
        ),
        (
            "path: ~/state",
            '1:14: jobs.path: must be the full path of a folder, such as /var/lib/swaplane, not "~/state"',
        ),
        ("webhook: {hots: [a]}", "1:18: jobs.webhook.hots: unknown key `hots` (did you mean `hosts`?)"),
        ("webhook: {hosts: a}", '1:25: jobs.webhook.hosts: must be a list, not the text "a"'),
    ],
)
def test_a_bad_value_is_named_with_its_place(written: str, problem: str) -> None:
    assert problems(f"jobs: {{{written}}}") == (f"c.yaml:{problem}",)


@pytest.mark.parametrize(
    "host", ["https://a.org", "a.org/hook", "*.a.org", "a.org:0", "a.org:65536", "a.org:", "::1", "a b", "a,b", ""]
)
def test_a_host_is_a_bare_name_with_a_port_at_most(host: str) -> None:
    (found,) = problems(f'jobs:\n  webhook:\n    hosts: [b.org, "{host}"]')
    sentence = f'must be a host or HOST:PORT, such as "hooks.example.org", not "{host}"'
    assert found == f"c.yaml:3:20: jobs.webhook.hosts[1]: {sentence}"


@pytest.mark.parametrize(
    "secret", [SECRET[6:], "whsec_", "whsec_c2hvcnQ=", "whsec_not base64 at all, not at all", f"whsec_{'A' * 88}", "x"]
)
def test_a_secret_of_another_form_is_refused_and_not_shown(secret: str) -> None:
    (found,) = problems(f'jobs:\n  webhook:\n    secret: "{secret}"')
    sentence = "must be `whsec_` and then 24 to 64 random bytes in base64"
    assert found == f"c.yaml:3:13: jobs.webhook.secret: {sentence}"
