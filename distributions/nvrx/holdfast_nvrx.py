"""Python asks this last when a script imports `nvidia_resiliency_ext`: where NVRx is installed, its files are found before.

Loaded at the start of every Python of this environment, so it imports nothing: `holdfast.integrations.nvrx_names` has names.
"""

import sys


class Names:
    """Answers to that name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """What is loaded for `name`; None: nothing of ours."""
        if name.partition(".")[0] != "nvidia_resiliency_ext":
            return None
        from holdfast.integrations import nvrx_names  # only for a script that imports it

        return nvrx_names.find_spec(name)


sys.meta_path.append(Names)
