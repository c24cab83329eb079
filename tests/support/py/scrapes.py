"""Scrapes --metrics-addr, and reads what comes strictly."""

import http.client
import re

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def scrape(port, path="/metrics", accept=None, method="GET", timeout=30):
    """(status, content type, text)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def samples(text):
    """{(name, labels): value}. Every sample belongs to the family before it, which has a help and a type; none comes twice."""
    found, family, families = {}, None, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in families, line
            families.add(family)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family and line.split()[3] in ("gauge", "counter", "histogram"), line
        elif line != "# EOF":
            m = SAMPLE.match(line)
            assert m and m.group(1).startswith(family), line
            key = m.group(1), tuple(LABEL.findall(m.group(2) or ""))
            assert key not in found, line
            found[key] = float(m.group(3))
    return found


def value(found, name, **labels):
    return found[name, tuple(labels.items())]


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
