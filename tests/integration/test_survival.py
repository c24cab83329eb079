"""The short form of tests/soak survival: a job trains, and clients use its worker store, while the crund that leads, others and etcd's leader fail."""

import re
import shutil

import fabric as fabrics
import jobs
from strict import skip_if


def missing():
    return fabrics.missing() or (None if shutil.which("etcd") else "etcd is not installed")


def test_faults_of_the_control_plane_cost_no_restart():
    skip_if(missing())
    p = jobs.run_soak("survival.py", "--jobs=train,store", "--lease=15", "--rounds=3", "--in-order",
                      "kill-leader", "kill-etcd", "cut-follower", timeout=500)
    assert p.returncode == 0, p.stdout[-20000:] + p.stderr
    rows = re.findall(r"^(kill-leader|kill-etcd|cut-follower) +1 ", p.stdout, re.M)
    assert len(rows) == 3, p.stdout
    assert int(re.search(r"with (\d+) operations, 0 complaints", p.stdout)[1]) > 0, p.stdout
