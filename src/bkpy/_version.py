"""The version of the package, as it was installed."""


def version() -> str:
    """As in the package's metadata; `0` in a source tree that isn't installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("bkpy")
    except PackageNotFoundError:
        return "0"
