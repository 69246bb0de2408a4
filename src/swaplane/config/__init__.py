"""One llama-swap `config.yaml` in, resolved immutable settings out.

`load.load(path, environ)` is the one entry point; `settings.Settings` is its result. Nothing here starts a
process or opens a socket. See docs/configuration.md.
"""
