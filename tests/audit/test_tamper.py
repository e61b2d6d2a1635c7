"""One digit changed in any derived number, one byte changed anywhere: named, with line and field."""

import json
import random

import pytest

from otel_grpo.audit import audit, render

MARK = "@changed@"


def leaves(tree, path=()):
    """The paths of all numbers of a tree, lists included."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, (*path, name))
    elif isinstance(tree, list):
        for k, value in enumerate(tree):
            yield from leaves(value, (*path, k))
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree


def at(tree, path):
    for name in path[:-1]:
        tree = tree[name]
    return tree, path[-1]


def other_digit(value):
    """The number with its last digit changed: the smallest change that a text can have."""
    text = json.dumps(value)
    digits, mark, exponent = text.partition("e")
    return digits[:-1] + str((int(digits[-1]) + 1) % 10) + mark + exponent


def put(tree, path, text):
    """The JSON text of a tree with one number's text replaced."""
    owner, name = at(tree, path)
    owner[name] = MARK
    return json.dumps(tree, separators=(",", ":")).replace(f'"{MARK}"', text).encode()


def metric_cases(files):
    for k, entry in enumerate(files.records):
        for name in entry["metrics"]:
            yield k, name


def found(report, **wanted):
    return [
        f for f in report.findings if all(getattr(f, key) == value for key, value in wanted.items())
    ]


def test_every_metric_of_every_record(files, tmp_path):
    """The chain is not needed for it: the line and the name are found with a chain made anew."""
    base = json.dumps(files.records)
    cases = list(metric_cases(files))
    assert len(cases) > 350
    for k, name in cases:
        files.records = json.loads(base)
        value = files.records[k]["metrics"][name]
        files.records[k]["metrics"][name] = json.loads(other_digit(value))
        if files.records[k]["metrics"][name] == value:
            continue  # two texts, one float: the next test
        report = audit(files.write(tmp_path))
        assert report.exit_status == 1, name
        assert found(report, line=k + 1, field=f"metrics.{name}"), (name, render(report))


def test_the_text_of_every_float(files, tmp_path):
    """The last digit of a float matters even where it means the same float."""
    lines = files.lines()
    folder = files.write(tmp_path)
    cases = 0
    for k, entry in enumerate(files.records):
        for name, value in entry["metrics"].items():
            if isinstance(value, float):
                changed = put(json.loads(lines[k]), ("metrics", name), other_digit(value))
                text = b"\n".join((*lines[:k], changed, *lines[k + 1 :], b""))
                (folder / "metrics_raw.jsonl").write_bytes(text)
                report = audit(folder)
                assert report.exit_status == 1
                assert found(report, line=k + 1, field=f"metrics.{name}"), name
                assert found(report, line=k + 1, field="prev"), name
                cases += 1
    assert cases > 40


def test_every_number_of_the_run_record(files, tmp_path):
    """Its attributes are derived too; its end is evidence, and moves the times."""
    base = json.dumps(files.records)
    for path, value in leaves(json.loads(base)[-1]["attributes"]):
        files.records = json.loads(base)
        owner, name = at(files.records[-1]["attributes"], path)
        owner[name] = json.loads(other_digit(value))
        if owner[name] == value:
            continue
        report = audit(files.write(tmp_path))
        assert report.exit_status == 1, path
        if path == ("ended_unix_ns",):
            assert found(report, line=8, field="attributes.time.wall_ns")
        else:
            assert found(report, line=8, field="attributes." + ".".join(map(str, path))), path


def test_every_segment(files, tmp_path):
    """The partition is in the attributes and derived all the same."""
    base = json.dumps(files.records)
    for k in (1, 4, 5):
        for row in range(len(json.loads(base)[k]["attributes"]["segments"])):
            files.records = json.loads(base)
            files.records[k]["attributes"]["segments"][row][1] += 1
            report = audit(files.write(tmp_path))
            key = ",".join(files.records[k]["attributes"]["segments"][row][0])
            assert found(report, line=k + 1, field=f"attributes.segments{{{key}}}")


def test_every_number_of_the_summary(files, tmp_path):
    """All but `observed`, by its dotted name."""
    folder = files.write(tmp_path)
    text = json.dumps(files.summary)
    apart = ("observed", "attempts")
    cases = [case for case in leaves(json.loads(text)) if case[0][0] not in apart]
    assert len(cases) > 130
    for path, value in cases:
        (folder / "summary.json").write_bytes(put(json.loads(text), path, other_digit(value)))
        report = audit(folder)
        assert report.exit_status == 1, path
        name = ".".join(map(str, path))
        if name != "attempt":  # another attempt's summary: no final one for this one
            assert found(report, file="summary.json", field=name), (name, render(report))


def test_a_number_too_many_or_too_few(files, tmp_path):
    """What the evidence doesn't give must not stand there; what it gives must."""
    files.records[1]["metrics"]["tokens.made_up"] = 5
    del files.records[4]["metrics"]["groups"]
    files.summary["tokens"]["made_up"] = 5
    del files.summary["samples"]["visits"]
    report = audit(files.write(tmp_path))
    assert found(report, line=2, field="metrics.tokens.made_up", recomputed="absent")
    assert found(report, line=5, field="metrics.groups", stored="absent", recomputed=1)
    assert found(report, field="tokens.made_up", file="summary.json")
    assert found(report, field="samples.visits", file="summary.json", recomputed=11)


def test_an_integer_is_not_a_float(files, tmp_path):
    """4.0 where the count is 4."""
    files.records[1]["metrics"]["samples.visits"] = 4.0
    assert found(audit(files.write(tmp_path)), line=2, field="metrics.samples.visits")


def test_any_byte_of_any_line(files, tmp_path):
    """Another byte at many places of each line: exit 1, and the line is named."""
    rng = random.Random(3)
    lines = files.lines()
    folder = files.write(tmp_path)
    for k, line in enumerate(lines):
        for place in sorted(rng.sample(range(len(line)), 40)):
            changed = bytearray(line)
            changed[place] ^= rng.choice((1, 2, 4, 16, 128))
            if changed[place] == ord("\n"):
                changed[place] = ord("~")
            text = b"\n".join((*lines[:k], bytes(changed), *lines[k + 1 :], b""))
            (folder / "metrics_raw.jsonl").write_bytes(text)
            report = audit(folder)
            context = (k + 1, place, bytes(changed[max(0, place - 20) : place + 20]))
            assert report.exit_status == 1, (context, render(report))
            assert found(report, line=k + 1, severity="error"), (context, render(report))


@pytest.mark.parametrize("k", range(8))
def test_the_previous_hash_itself(files, tmp_path, k):
    """A changed `prev` is laid to its own line."""
    lines = files.lines()
    folder = files.write(tmp_path)
    old = b'"prev":null' if k == 0 else b'"prev":"'
    new = b'"prev":"0"' if k == 0 else b'"prev":"x'
    changed = lines[k].replace(old, new, 1)
    text = b"\n".join((*lines[:k], changed, *lines[k + 1 :], b""))
    (folder / "metrics_raw.jsonl").write_bytes(text)
    report = audit(folder)
    assert report.exit_status == 1
    assert [f.line for f in found(report, field="prev")] == [k + 1]


@pytest.mark.parametrize("k", range(8))
def test_a_line_taken_out(files, tmp_path, k):
    """The chain and `seq` both tell, also at the ends."""
    lines = files.lines()
    report = audit(files.write(tmp_path, [*lines[:k], *lines[k + 1 :]]))
    assert report.exit_status == 1
    assert found(report, field="prev")
    assert any("lost 1 record" in f.message for f in report.findings) == (k < 7)


def test_a_line_put_in_twice(files, tmp_path):
    """A copied line breaks the chain and uses a `seq` again."""
    lines = files.lines()
    report = audit(files.write(tmp_path, [*lines[:3], lines[2], *lines[3:]]))
    assert report.exit_status == 1
    assert found(report, line=4, field="seq")
