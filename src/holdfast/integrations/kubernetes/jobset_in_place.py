"""What does a JobSet with `restartStrategy: InPlaceRestart` hear of this pod? A program of its own, run by
`agent.reporting.jobset`.

JobSet counts the lives of all its pods as one (KEP-467). Each pod says in an annotation which attempt it is at; one that is
made again says the next, and JobSet's status then calls the earlier ones outdated: their agents are to begin anew as well.
`current` is the attempt that all pods have reached, `previous` the newest that is outdated. Our agents need not begin anew:
they meet the new pod in a round of their own, before which no rank starts. So all they do here is to follow, in the annotation.

Its arguments: names of the JobSet and of our pod, and the attempt that an earlier life of this program has told for the same
agent. It ends with the agent, whose pipe it has as stdin, or to be started again. It prints

    attempt N      what our pod's annotation says now
    bypass WHY     nothing is said to this JobSet
    trouble WHY    and ends
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.parse
from typing import Any

from holdfast.integrations.kubernetes.api import WRONG, Api, Thing, words

DISABLED = "jobset.sigs.k8s.io/disable-in-place-restart"
ATTEMPT = "jobset.sigs.k8s.io/in-place-restart-attempt"
STRATEGY = "InPlaceRestart"
JOBSETS, POD = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets", "/api/v1/namespaces/{}/pods/{}"

ASK_S = 20.0  # How long the API server may be silent before it answers a question.
WATCH_S = 120, 240
"""How long one watch lasts, from and to: random, so that thousands of pods do not come back at once. A connection that has died
silently is noticed then."""
LEAST_S = 1.0
"""A watch that ends sooner has failed: the program ends, and the agent waits longer each time before it starts it again."""
GONE = 410  # The API server does not remember that version any more.


def attempt_of(own: int | None, current: int | None, previous: int | None) -> int:
    """The attempt that our pod is at, which has said `own` so far. None: has said nothing; has not been any."""
    attempt = own if own is not None else 0 if current is None else current + 1
    if previous is None or attempt > previous:
        return attempt
    return max(previous, current or 0) + 1


def bypass(jobset: Thing) -> str:
    """Why this JobSet wants to hear nothing. Empty: it does."""
    if DISABLED in jobset["metadata"].get("annotations", {}):
        return f"it is annotated {DISABLED}"
    strategy = jobset["spec"].get("failurePolicy", {}).get("restartStrategy", "Recreate")
    return "" if strategy == STRATEGY else f"its restartStrategy is {strategy}"


class Follower:
    """One life of this program."""

    def __init__(self, api: Api, jobset: str, pod: str, own: int | None) -> None:
        self.api, self.jobset, self.pod, self.own, self.clock = api, jobset, pod, own, time.monotonic
        self.said = ""
        self.selects = True  # The API server gives one JobSet of all. Old ones do not for what is not their own.

    def follow(self) -> None:
        """Until it is to be begun anew: what was seen last is too long ago, or watches do not last. Raises one of `WRONG`."""
        version = self._read()
        while version:
            began = self.clock()
            version = self._watch(version)
            if self.clock() < began + LEAST_S:
                return

    def _read(self) -> str:
        """Heed the JobSet as it is; returns the version from which to watch."""
        with self._open("list", {}, ASK_S) as answer:
            found = json.load(answer)
        if not any(self._heed(thing) for thing in found["items"]):
            raise OSError(f"there is no JobSet {self.jobset} in namespace {self.api.namespace}")
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Heed what has changed since, until the API server ends it; returns the version to go on from. Empty: none."""
        lasts_s = random.randint(*WATCH_S)
        how = {"watch": "1", "allowWatchBookmarks": "1", "resourceVersion": version, "timeoutSeconds": str(lasts_s)}
        try:
            with self._open("watch", how, lasts_s + ASK_S) as answer:
                for event in map(json.loads, answer):
                    thing = event["object"]
                    if event["type"] == "ERROR" and thing["code"] == GONE:
                        return ""
                    if event["type"] == "ERROR":
                        raise OSError(f"watching it ended with {thing['code']} {thing['message']}")
                    version = thing["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._heed(thing)
        except urllib.error.HTTPError as error:
            if error.code != GONE:
                raise
            return ""
        return version

    def _open(self, verb: str, how: dict[str, str], timeout_s: float) -> Any:
        what, path = f"{verb} the jobsets of namespace {self.api.namespace}", JOBSETS.format(self.api.namespace)
        if self.selects:
            query = urllib.parse.urlencode({**how, "fieldSelector": f"metadata.name={self.jobset}"})
            try:
                return self.api.open(what, f"{path}?{query}", timeout_s=timeout_s)
            except urllib.error.HTTPError as error:
                if error.code != 400:
                    raise
            self.selects = False
        return self.api.open(what, f"{path}?{urllib.parse.urlencode(how)}", timeout_s=timeout_s)

    def _heed(self, jobset: Thing) -> bool:
        """Say of our pod what this asks for. False: it is another JobSet."""
        if jobset["metadata"]["name"] != self.jobset:
            return False
        if why := bypass(jobset):
            self._say(f"bypass {why}")
            return True
        status = jobset.get("status", {})
        attempts = (status.get(f"{which}InPlaceRestartAttempt") for which in ("current", "previous"))
        if (attempt := attempt_of(self.own, *attempts)) != self.own:
            path = POD.format(self.api.namespace, urllib.parse.quote(self.pod, safe=""))
            patch = {"metadata": {"annotations": {ATTEMPT: str(attempt)}}}
            self.api.ask(f"patch pod {self.pod}", path, patch, timeout_s=ASK_S)
            self.own = attempt
        self._say(f"attempt {attempt}")
        return True

    def _say(self, what: str) -> None:
        if what != self.said:
            self.said = what
            print(what, flush=True)


def main(jobset: str, pod: str, own: str = "") -> None:
    """Follow that JobSet."""
    threading.Thread(target=_end_with_agent, daemon=True).start()
    try:
        Follower(Api(os.environ), jobset, pod, int(own) if own else None).follow()
    except WRONG as error:
        print("trouble", words(error), flush=True)


def _end_with_agent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)
