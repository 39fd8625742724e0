"""Links between processes and hosts: sockets, frames, encryption, names."""
