"""Serving as on a serverless endpoint: every file system is read-only except /tmp, and there is no shared memory."""

import json
import subprocess

import pytest

from contracts.serving import CSV, JSON
from testing.jobs import table
from testing.serving import serving

# The mounts of a namespace of its own. The job's folder and this repository may be in /tmp.
READ_ONLY = """
root=$1
shift
mount --make-rprivate /
mount --rbind /tmp /tmp
mount --bind "$root" "$root"
mount --bind "$PWD" "$PWD"
cd "$PWD"
mount -t tmpfs -o mode=000 tmpfs /dev/shm
for place in $(cut -d' ' -f2 /proc/self/mounts); do
    case $place in
        /tmp|/proc*|/sys*|/dev|/dev/pts) ;;
        *) mount -o remount,ro,bind "$place" 2>/dev/null || true ;;
    esac
done
for place in "$PWD" "$root" "$HOME" /dev/shm /var/tmp; do
    if touch "$place/written" 2>/dev/null; then echo "$place is writable"; exit 9; fi
done
exec "$@"
"""


@pytest.mark.slow
def test_a_server_needs_no_writable_folder_except_tmp_and_no_shared_memory(trained_job):
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespaces; tests/docker/test_serve.py shows the same in the image")
    wrapper = ["unshare", "--map-root-user", "--mount", "bash", "-ec", READ_ONLY, "bash", str(trained_job.root)]
    frame = table(600, seed=3).drop(columns=["events", "label"])
    records = json.loads(frame.to_json(orient="records"))
    with serving(trained_job.root, wrapper=wrapper) as server:
        assert server.ask(content_type=None, method="GET", path="/ping").status == 200
        body = json.dumps(records)
        assert len(body) > 1 << 16  # in a temporary file
        answers = [server.ask(body, JSON), server.ask(frame.to_csv(index=False), CSV)]
        assert [len(answer.probabilities) for answer in answers] == [600, 600]
        assert server.stop() == 0
