"""The secret of a job, in a file as --secret-file wants it."""

LONG_ENOUGH = b"a secret of the tests, long enough"


def write_secret(path, content=LONG_ENOUGH):
    """Only its owner may read it, or it is refused. Returns the path."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o600)
    return path
