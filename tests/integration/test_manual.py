"""Section 3 of the manual says what crw.h and crw_trainer.h say: every function, with its types."""

import re

import pytest

import jobs

PAGES = sorted((jobs.ROOT / "man").glob("*.3"))
HEADERS = [jobs.ROOT / "worker-runtime" / name for name in ("crw.h", "crw_trainer.h")]


def squeeze(text):
    return re.sub(r"\s*([*(),])\s*", r"\1", " ".join(text.split()))


def declared(headers=HEADERS):
    """name -> the prototype, without what makes no difference"""
    header = "".join(path.read_text() for path in headers)
    header = re.sub(r"/\*.*?\*/|^#.*?$", "", header, flags=re.S | re.M)
    prototypes = [squeeze(p) for p in re.findall(r"CRW_EXPORT\s+(.*?);", header, re.S)]
    return {re.search(r"(crw_\w+)\(", p)[1]: p for p in prototypes}


def documented(page):
    """The same of a page's synopsis."""
    synopsis = page.read_text().split(".Sh SYNOPSIS")[1].split(".Sh DESCRIPTION")[0]
    found = {}
    for kind, name, args in re.findall(r"^\.Ft (.*)\n\.F[no] (\w+)((?:.|\n)*?)(?=^\.F[tc]|\Z)", synopsis, re.M):
        arguments = ",".join(re.findall(r'"(.*?)"', args))
        found[name] = squeeze(kind.strip('"') + f" {name}({arguments})")
    return found


def test_every_function_is_described_as_it_is_declared():
    everything = declared()
    assert len(everything) > 100
    found = {}
    for page in PAGES:
        for name, prototype in documented(page).items():
            assert name not in found, f"{name} is in two pages"
            found[name] = prototype
    assert found == everything


def test_the_page_of_an_experiment_names_its_header_and_promises_nothing():
    """A function of crw_trainer.h is in no page that has only crw.h."""
    for page in PAGES:
        shown = set(re.findall(r"^\.In (\S+)$", page.read_text().split(".Sh DESCRIPTION")[0], re.M))
        assert shown >= {h.name for h in HEADERS if declared([h]).keys() & documented(page).keys()}, page
    assert "CRW_EXPERIMENTAL" in (jobs.ROOT / "man/crw_trainer.3").read_text()


def test_both_pages_agree_on_what_protects_data_between_hosts():
    hosts = (jobs.ROOT / "man/crw_group.3").read_text().split(".Ss Several hosts")[1].split("\n.S")[0]
    for way in ("CRW_ENCRYPT", "Fl Fl seal", "the job has a secret"):
        assert way in hosts and way in (jobs.ROOT / "man/libcrw.3").read_text(), way


def test_no_page_shows_a_cast_that_breaks_aliasing():
    """(void **)&floats makes a compiler's optimisation wrong in the program that copies it."""
    for page in PAGES:
        assert "(void **)&" not in page.read_text(), page


@pytest.mark.parametrize("name", ["crw_all_reduce", "crw_snapshots_save", "crw_model_forward", "crw_version"])
def test_a_function_leads_to_its_page(name):
    page = (jobs.build_folder() / "man" / f"{name}.3").read_text().strip()
    assert page.startswith(".so man3/") and name in documented(jobs.ROOT / "man" / page.split("/")[1]), page


def members(text):
    """structure -> its members, without comments"""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return {m[1]: squeeze(m[2]) for m in re.finditer(r"^struct (crw_\w+) \{\n(.*?)^\};", text, re.S | re.M)}


def test_every_structure_is_shown_with_its_members():
    everything = members("".join(path.read_text() for path in HEADERS))
    assert len(everything) > 10
    found = {}
    for page in PAGES:
        for name, text in members(page.read_text()).items():
            assert name not in found, f"struct {name} is in two pages"
            found[name] = text
    assert found == everything
