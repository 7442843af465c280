"""Prints what the Python package isoxml reads in a TaskData archive, as tree.mjs does, and with "warning" what the
schema of version 4 requires and is not there, or does not allow: python3 tree.py FILE"""
import dataclasses
import decimal
import enum
import hashlib
import pathlib
import re
import sys
import tempfile
import zipfile

import isoxml.models.base.v3 as v3
import isoxml.models.base.v4 as v4
from xsdata.formats.dataclass.parsers import XmlParser
from xsdata.formats.dataclass.parsers.config import ParserConfig


def walk(place, value):
    if value is None or value == "" or value == []:
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            check(f"{place}.{field.name}", getattr(value, field.name), field.metadata)
            walk(f"{place}.{field.name}", getattr(value, field.name))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            walk(f"{place}[{i}]", one)
    elif isinstance(value, enum.Enum):
        print(f"{place}={value.value}")
    elif isinstance(value, bytes):
        print(f"{place}={value.hex()}")
    else:
        print(f"{place}={float(value) if isinstance(value, decimal.Decimal) else value!r}")


def check(place, value, rule):
    if value is None:
        if rule.get("required"):
            print(f"warning: {place} is missing")
    elif isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool):
        if not rule.get("min_inclusive", value) <= value <= rule.get("max_inclusive", value):
            print(f"warning: {place} is out of range")
        if isinstance(value, decimal.Decimal) and -value.as_tuple().exponent > rule.get("fraction_digits", 99):
            print(f"warning: {place} has too many decimals")
    elif isinstance(value, str):
        if len(value) > rule.get("max_length", len(value)) or not re.fullmatch(rule.get("pattern", ".*"), value, re.S):
            print(f"warning: {place} is no text that it may be")


with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(sys.argv[1]) as archive:
        archive.extractall(folder)
    files = {p.name.upper(): p for p in pathlib.Path(folder).rglob("*") if p.is_file()}
    content = files["TASKDATA.XML"].read_text("utf-8-sig")
    model = v3 if 'VersionMajor="3"' in content else v4
    config = ParserConfig(fail_on_unknown_properties=False, fail_on_unknown_attributes=False)
    walk("", XmlParser(config).from_string(content, model.Iso11783TaskData))
    for name, path in sorted(files.items()):
        if name.endswith(".BIN"):
            print(f"{name}: {hashlib.sha256(path.read_bytes()).hexdigest()}")
