"""The pure core: events in, commands out.

Nothing here performs I/O, reads a clock, logs or draws random numbers; every call is given `now`.
`dispatcher.Dispatcher.handle(event, now)` is the one entry point. See docs/architecture.md.
"""
