"""The pure part of the protocol: codecs, values and state machines, with neither I/O nor asyncio."""
