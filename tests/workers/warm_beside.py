"""Imported by warm_dump.py from its own folder."""

VALUE = "beside the script"
