"""Beats once, notes that, and stays: a life of the soak."""

import signal

from note import has_been, note

import holdfast.client

holdfast.client.heartbeat()
note("first")
while not has_been("over"):
    signal.pause()
