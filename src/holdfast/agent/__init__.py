"""RUN the group on this node: start its workers, keep their logs, see them die, stop them, start them again."""
