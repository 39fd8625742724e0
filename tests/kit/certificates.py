"""Certificates of a CA of the test's own, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Certificates:
    """Files of one CA."""

    def __init__(self, folder: Path) -> None:
        import trustme

        folder.mkdir()
        self.folder, self.ca = folder, trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)

    def flags(self, name: str = "node", **how: Any) -> tuple[str, ...]:
        """Command line of a node with a certificate of this CA."""
        issued = self.ca.issue_cert(f"{name}.example", **how)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(self.ca_file))
